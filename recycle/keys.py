"""Keys of files: an unknown one is named, with the known one that is nearest."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")


class UnknownKey(NamedTuple):
    """A key that is not read.

    Attributes:
        name: the key.
        place: where it is, as msgspec writes it.
        known: the keys that are read there.
        is_refused: whether none is passed over there.
    """

    name: str
    place: str
    known: tuple[str, ...]
    is_refused: bool


def convert(document: Any, kind: type[T]) -> T:
    """The content of a file as what it must be.

    Raises:
        msgspec.ValidationError: it is not that; of an unknown key it names the nearest known one.
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise explained(error, document, kind) from error


def explained(error: msgspec.ValidationError, document: Any, kind: Any) -> msgspec.ValidationError:
    """What is wrong with the content of a file: first of all, a key that is not read.

    Args:
        error: what msgspec says, which may be of a key that is missing because it is misspelt.
        document: the content.
        kind: what it must be.
    """
    wanted = inspect.type_info(kind)
    elsewhere = {path.rpartition(".")[2]: path for path in _paths(wanted)}
    for key in _unknown(document, wanted, "$"):
        near = _nearest(key, elsewhere)
        if near is None and not key.is_refused:
            continue
        remedy = f"; the keys here are {', '.join(key.known)}" if near is None else f" (did you mean `{near}`?)"
        place = "" if key.place == "$" else f" - at `{key.place}`"
        return msgspec.ValidationError(f"unknown key `{key.name[:100]}`{remedy}{place}")
    return error


def nearest(name: str, known: "tuple[str, ...] | list[str]") -> str | None:
    """The known name that is meant by a misspelt one; None if none is near."""
    names = {each.lower().replace("-", "_"): each for each in known}
    close = get_close_matches(name.lower().replace("-", "_"), names, n=1, cutoff=0.7)
    return names[close[0]] if close else None


def _nearest(key: UnknownKey, elsewhere: dict[str, str]) -> str | None:
    if key.name in elsewhere:
        return elsewhere[key.name]
    here = nearest(key.name, key.known)
    other = None if here else nearest(key.name, list(elsewhere))
    return here if other is None else elsewhere[other]


def _unknown(value: Any, kind: inspect.Type, place: str) -> Iterator[UnknownKey]:
    """The keys of a value that are not read, as far as the value is what it must be."""
    match kind:
        case inspect.StructType() if isinstance(value, dict):
            fields = {field.encode_name: field for field in kind.fields}
            known = (*fields, *([kind.tag_field] if kind.tag_field else []))
            is_whole = all(name in value for name, field in fields.items() if field.required)
            if kind.forbid_unknown_fields or not is_whole:
                for name in value:
                    if name not in known:
                        yield UnknownKey(name, place, known, kind.forbid_unknown_fields)
            for name, field in fields.items():
                if name in value:
                    yield from _unknown(value[name], field.type, f"{place}.{name}")
        case inspect.ListType() | inspect.VarTupleType() if isinstance(value, list):
            for number, each in enumerate(value):
                yield from _unknown(each, kind.item_type, f"{place}[{number}]")
        case inspect.DictType() if isinstance(value, dict):
            for each in value.values():
                yield from _unknown(each, kind.value_type, f"{place}[...]")
        case inspect.UnionType():
            for each in kind.types:
                yield from _unknown(value, each, place)
        case inspect.Metadata():
            yield from _unknown(value, kind.type, place)


def _paths(kind: inspect.Type, place: str = "") -> Iterator[str]:
    """Every key of a file, with the tables that it is in; those of outer tables come last."""
    match kind:
        case inspect.StructType():
            for field in kind.fields:
                path = f"{place}.{field.encode_name}".removeprefix(".")
                yield from _paths(field.type, path)
            yield from (f"{place}.{field.encode_name}".removeprefix(".") for field in kind.fields)
        case inspect.ListType() | inspect.VarTupleType():
            yield from _paths(kind.item_type, place)
        case inspect.UnionType():
            for each in kind.types:
                yield from _paths(each, place)
        case inspect.Metadata():
            yield from _paths(kind.type, place)
