"""Several schemes in one word of the command line: `none,linear:factor=4,yarn:factor=4:mode=segment,{"name": ...}`."""

from hf_posswap.cli.parser import plain_value
from hf_posswap.cli.typed_scheme import typed_scheme
from hf_posswap.errors import SchemeError
from hf_posswap.schemes import Scheme

AS_IT_IS = "none"
OPENING, CLOSING = "[{(", "]})"


def typed_schemes(typed: str) -> dict[str, Scheme | None]:
    """Schemes by what was typed for each; None for "none", the model as it is.

    Commas separate schemes and colons their fields, but neither within brackets or quotes: JSON goes in as it is.

    Raises:
        SchemeError: an empty part, one given twice, no such scheme or field, or a wrong value.
    """
    found: dict[str, Scheme | None] = {}
    for part in split_outside(typed, ","):
        if not part or part in found:
            raise SchemeError(f"--schemes {typed:.80}: {f'{part} is given twice' if part else 'a name is missing'}.")
        found[part] = None if part == AS_IT_IS else _scheme(part)
    return found


def _scheme(part: str) -> Scheme:
    if part.startswith("{") and not part.endswith("}"):
        raise SchemeError(f"{part:.80}: the fields of a JSON scheme go inside of its braces.")
    name, *fields = [part] if part.startswith("{") else split_outside(part, ":")
    pairs = [field.partition("=") for field in fields]
    wrong = [key for key, equals, _ in pairs if not equals]
    if wrong:
        raise SchemeError(f"{part}: {wrong[0]!r} is no field with a value, such as yarn:factor=4.")
    given = {key.strip(): plain_value(value) for key, _, value in pairs}
    if len(given) < len(pairs):
        raise SchemeError(f"{part}: a field is given twice.")
    return typed_scheme(name, given)


def split_outside(text: str, separator: str) -> list[str]:
    """The parts of a text between separators that stand in no brackets and no double quotes."""
    parts, depth, quoted, escaped = [""], 0, False, False
    for letter in text:
        if letter == separator and not quoted and depth == 0:
            parts.append("")
            continue
        parts[-1] += letter
        if letter == '"' and not escaped:
            quoted = not quoted
        elif not quoted:
            depth += (letter in OPENING) - (letter in CLOSING)
        escaped = letter == "\\" and not escaped
    return [part.strip() for part in parts]
