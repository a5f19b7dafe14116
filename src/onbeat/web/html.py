"""Parts of HTML pages."""

from html import escape


def table(heading: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table; without rows, a word that says so."""
    if not rows:
        return "<p>None.</p>"
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in heading)
    body = "\n".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
