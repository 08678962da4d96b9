"""Render the table of promises into the page docs/reliability.md."""

from typing import Any

from tests.prove.promise import Promise

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def render_reliability(record: dict[str, Any], promises: list[Promise], page: str) -> str:
    """The page with the table of this record between its two marks; a promise without a record says so."""
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    lines = ["| | promise | how it is tried | trials | failures | minutes | of a core |", "| --- " * 7 + "|"]
    known = {each["name"]: each for each in record["promises"]}
    for promise in promises:
        if promise.name not in known:
            lines.append(f"| {promise.number} | {promise.sentence} | {promise.how} | none in full yet | | | |")
            continue
        each = known[promise.name]
        how = each["how"] + "".join(f" Not tried here: {reason}." for reason in each["skipped"])
        how += "".join(f" {name}: {value:g}." for name, value in sorted(each["measured"].items()))
        cells = [each["number"], each["sentence"], how, f"{each['trials']:,}", f"{each['failed']:,}"]
        lines.append(f"| {' | '.join([*cells, str(each['minutes']), str(each['cpu_minutes'])])} |")
    trials, failed = (sum(each[key] for each in record["promises"]) for key in ("trials", "failed"))
    core = sum(each["cpu_minutes"] for each in record["promises"])
    total = f"{trials:,} trials, {failed:,} failures, {core:.0f} minutes of a core"
    whole = "each by itself" if record["minutes"] is None else f"{record['minutes']} minutes in all"
    note = f"{total}; {whole}, on {record['date']} ({record['machine']})."
    return f"{before}{BEGIN}\n" + "\n".join([*lines, "", note]) + f"\n{END}{after}"
