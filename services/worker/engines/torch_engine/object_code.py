"""Takes machine code that was compiled before into this process: a linker for the little that is in LLVM's object file
of one function, ELF for x86-64 with addresses of 64 bits.

What numba has compiled needs numba only to report errors, and its import takes half a second and, with LLVM, 100 MiB.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable
from typing import NamedTuple

_HEADER = b"\x7fELF\x02\x01\x01"
_RELOCATABLE, _X86_64 = 1, 62
_SYMBOLS, _ADDENDS, _NO_BITS = 2, 4, 8  # kinds of sections
_LOADED = 2  # flag of a section
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2  # in place of a symbol's section
_ADDRESS, _DISTANCE = 1, 24  # kinds of relocations: R_X86_64_64, R_X86_64_PC64
_READ_EXECUTE = 5


class Code(NamedTuple):
    """A function in memory, which stays for as long as this does."""

    address: int
    memory: object


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


class _Symbol(NamedTuple):
    name: int
    info: int
    other: int
    section: int
    value: int
    size: int


def link(object_code: bytes, prefix: str, resolve: Callable[[str], int | None]) -> Code:
    """The function whose name begins with `prefix`, ready to be called. `resolve` gives the address of a symbol that
    the code does not define itself, None if there is none.

    :raises ValueError: the code is of another kind than this knows, or incomplete.
    :raises OSError: there is no memory that code may be executed in.
    """
    try:
        return _link(object_code, prefix, resolve)
    except (struct.error, IndexError, KeyError, StopIteration) as error:
        raise ValueError(f"object code is malformed: {error!r}") from error


def _link(code: bytes, prefix: str, resolve: Callable[[str], int | None]) -> Code:
    if not code.startswith(_HEADER) or struct.unpack_from("<HH", code, 16) != (_RELOCATABLE, _X86_64):
        raise ValueError("object code is not of this kind of machine")
    (table,), (size, count) = struct.unpack_from("<Q", code, 40), struct.unpack_from("<HH", code, 58)
    sections = [_Section(*struct.unpack_from("<IIQQQQIIQQ", code, table + n * size)) for n in range(count)]
    listed = next(each for each in sections if each.kind == _SYMBOLS)
    names = sections[listed.link].offset
    symbols = [
        _Symbol(*struct.unpack_from("<IBBHQQ", code, listed.offset + at)) for at in range(0, listed.size, listed.entry)
    ]
    places, whole = dict[int, int](), 0
    for number, each in enumerate(sections):
        if each.flags & _LOADED and each.size:
            places[number] = whole = _aligned(whole, max(each.align, 1))
            whole += each.size
    commons = dict[int, int]()
    for number, symbol in enumerate(symbols):
        if symbol.section == _COMMON:
            commons[number] = whole = _aligned(whole, max(symbol.value, 1))
            whole += symbol.size
    memory = mmap.mmap(-1, max(whole, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def named(symbol: _Symbol) -> str:
        return code[names + symbol.name : code.index(b"\0", names + symbol.name)].decode()

    def address(number: int) -> int:
        symbol = symbols[number]
        if number in commons:
            return base + commons[number]
        if symbol.section == _ABSOLUTE:
            return symbol.value
        if symbol.section != _UNDEFINED:
            return base + places[symbol.section] + symbol.value
        if (found := resolve(named(symbol))) is None:
            raise ValueError(f"object code needs {named(symbol)}, which is not there")
        return found

    for number, place in places.items():
        section = sections[number]
        if section.kind != _NO_BITS:
            memory[place : place + section.size] = code[section.offset : section.offset + section.size]
    for section in sections:
        if section.kind != _ADDENDS or section.info not in places:
            continue
        for at in range(section.offset, section.offset + section.size, section.entry):
            offset, info, addend = struct.unpack_from("<QQq", code, at)
            place, kind = places[section.info] + offset, info & 0xFFFFFFFF
            if kind not in (_ADDRESS, _DISTANCE):
                raise ValueError(f"object code has a relocation of kind {kind}")
            value = address(info >> 32) + addend - (base + place if kind == _DISTANCE else 0)
            struct.pack_into("<Q", memory, place, value % 2**64)
    if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(base), ctypes.c_size_t(len(memory)), _READ_EXECUTE):
        raise OSError(ctypes.get_errno(), "no memory may be executed")
    entry = next(
        number
        for number, symbol in enumerate(symbols)
        if symbol.section != _UNDEFINED and named(symbol).startswith(prefix)
    )
    return Code(address(entry), memory)


def _aligned(at: int, to: int) -> int:
    return -(-at // to) * to
