"""Long lives of a node, whose memory is counted: it must not grow with the runs it has done."""
