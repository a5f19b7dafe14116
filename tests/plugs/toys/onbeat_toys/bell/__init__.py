"""The launcher of `run: {bell: dinner, times: 3}`."""
