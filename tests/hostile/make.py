"""Media files that mean no good: `python tests/hostile/make.py FOLDER` writes them, the same ones each time.

Most begin as a good file of a kind and are then cut, changed or lied about; others name what is not theirs, never end,
or grow beyond all bounds once they are opened.
"""

from __future__ import annotations

import os
import struct
import sys
import wave
import zlib
from collections.abc import Iterator
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import PIL.Image

from motet.types import MediaKind

IMAGES = ("png", "jpg", "webp", "gif", "bmp", "tiff")
SOUNDS = ("wav", "flac", "mp3", "ogg", "m4a")
VIDEOS = ("mp4", "webm", "mkv", "avi")
SUFFIXES: dict[MediaKind, tuple[str, ...]] = {"image": IMAGES, "audio": SOUNDS, "video": VIDEOS}
VIDEO_CODECS = {"mp4": ("libx264", "aac"), "webm": ("libvpx", "libopus"), "mkv": ("libx264", "flac")}
VIDEO_CODECS["avi"] = ("mpeg4", "libmp3lame")
SOUND_CODECS = {"flac": "flac", "mp3": "libmp3lame", "ogg": "libopus", "m4a": "aac"}
RATE_HZ = 48_000


class Hostile(NamedTuple):
    kind: MediaKind
    ref: str
    """Relative to the folder, or absolute."""
    must_fail: bool
    """Others may be read: a changed pixel is a pixel."""


Make = Iterator[tuple[MediaKind, str, bytes, bool]]
"""Kind, name, content, and whether it must fail."""


def make(folder: Path, *, seed: int = 0) -> list[Hostile]:
    """Write all of them below `folder`, and beside them `good.png`, `good.wav`, `good.mp4`, ..., which are whole."""
    good = goods()
    for suffix, data in good.items():
        (folder / f"good.{suffix}").write_bytes(data)
    found: list[Hostile] = []
    for family in (cut, empty, misnamed, noise, flipped, sizes, sounds, tracks, playlists, documents):
        (folder / family.__name__).mkdir()
        rng = np.random.default_rng([seed, *family.__name__.encode()])
        for kind, name, data, must_fail in family(good, rng):
            path = folder / family.__name__ / name
            path.write_bytes(data)
            found.append(Hostile(kind, str(path.relative_to(folder)), must_fail))
    return [*found, *endless(folder), *places(folder)]


# ---- good files --------------------------------------------------------------------------------


def goods() -> dict[str, bytes]:
    """Suffix -> a small file that is whole."""
    rng = np.random.default_rng(0)
    pixels = np.kron(rng.integers(0, 256, (12, 16, 3), np.uint8), np.ones((8, 8, 1), np.uint8))
    good = {suffix: picture(pixels, suffix) for suffix in IMAGES}
    tone = (0.3 * np.sin(2 * np.pi * 440 * np.arange(RATE_HZ) / RATE_HZ)).astype(np.float32)
    good["wav"] = wav(tone)
    good |= {suffix: clip(suffix, tone=tone) for suffix in SOUND_CODECS}
    frames = rng.integers(0, 256, (20, 6, 8, 3), np.uint8).repeat(8, 1).repeat(8, 2)
    return good | {suffix: clip(suffix, frames=frames, tone=tone) for suffix in VIDEOS}


def picture(pixels: np.ndarray, suffix: str, **options: Any) -> bytes:
    file = BytesIO()
    PIL.Image.fromarray(pixels).save(file, {"jpg": "JPEG"}.get(suffix, suffix.upper()), **options)
    return file.getvalue()


def wav(samples: np.ndarray) -> bytes:
    """Mono, 16 bits."""
    file = BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, RATE_HZ, 0, "NONE", ""))
        writer.writeframes((samples * 32767).astype("<i2").tobytes())
    return file.getvalue()


def clip(suffix: str, *, tone: np.ndarray, frames: np.ndarray | None = None) -> bytes:
    """A sound or, with frames [F, H, W, 3] at 10 a second, a video."""
    file = BytesIO()
    video_codec, sound_codec = VIDEO_CODECS.get(suffix, ("", SOUND_CODECS.get(suffix, "")))
    container_format = {"mkv": "matroska", "m4a": "mp4"}.get(suffix, suffix)
    with av.open(file, "w", format=container_format, options={"fflags": "+bitexact"}) as container:
        picture: Any = None if frames is None else container.add_stream(video_codec, rate=10)
        sound: Any = container.add_stream(sound_codec, rate=RATE_HZ, layout="mono")
        if frames is not None:
            picture.height, picture.width, picture.pix_fmt = *frames.shape[1:3], "yuv420p"
            for pixels in frames:
                container.mux(picture.encode(av.VideoFrame.from_ndarray(pixels)))
            container.mux(picture.encode())
        block = av.AudioFrame.from_ndarray((tone * 32767).astype(np.int16)[None], format="s16", layout="mono")
        block.sample_rate, block.time_base, block.pts = RATE_HZ, Fraction(1, RATE_HZ), 0
        container.mux(sound.encode(block))  # the encoder converts to its own format
        container.mux(sound.encode())
    return file.getvalue()


def kinds() -> Iterator[tuple[MediaKind, str]]:
    return ((kind, suffix) for kind, suffixes in SUFFIXES.items() for suffix in suffixes)


# ---- families ----------------------------------------------------------------------------------


def cut(good: dict[str, bytes], rng: np.random.Generator) -> Make:
    """Downloads that broke off. Streams may be read up to there, where their container knows no length."""
    tells = {"mp3": 0.0, "ogg": 0.0, "webm": 0.7, "gif": 0.7}
    for kind, suffix in kinds():
        for part in (0.01, 0.1, 0.4, 0.7, 0.9):
            data = good[suffix][: max(1, int(part * len(good[suffix])))]
            yield kind, f"{int(100 * part)}.{suffix}", data, part <= tells.get(suffix, 0.9)


def empty(good: dict[str, bytes], rng: np.random.Generator) -> Make:
    for kind, suffix in kinds():
        yield kind, f"zero.{suffix}", b"", True


def misnamed(good: dict[str, bytes], rng: np.random.Generator) -> Make:
    """What is in them is another kind of thing than what the row says, whatever they are called."""
    for kind, suffix, said in (
        ("image", "wav", "png"), ("image", "mp4", "jpg"), ("image", "flac", "webp"), ("image", "webm", "gif"),
        ("audio", "png", "wav"), ("audio", "jpg", "mp3"), ("audio", "gif", "flac"), ("audio", "webp", "ogg"),
        ("video", "wav", "mp4"), ("video", "flac", "mkv"), ("video", "mp3", "avi"), ("video", "ogg", "webm"),
    ):  # fmt: skip
        yield kind, f"{suffix}_as.{said}", good[suffix], True  # type: ignore[misc]
    archive = b"PK\3\4" + rng.bytes(5000)
    for kind, suffix in kinds():
        yield kind, f"text_as.{suffix}", b"<html>404 Not Found</html>\n" * 40, True
        yield kind, f"zip_as.{suffix}", archive, True


def noise(good: dict[str, bytes], rng: np.random.Generator) -> Make:
    """The first bytes are right, and nothing else."""
    for kind, suffix in kinds():
        yield kind, f"head.{suffix}", good[suffix][:16] + rng.bytes(20_000), suffix not in ("mp3", "bmp")


def flipped(good: dict[str, bytes], rng: np.random.Generator) -> Make:
    """A few bytes changed: anywhere, or in the first kilobyte, where the numbers are that sizes come from."""
    for kind, suffix in kinds():
        for number in range(6):
            data = np.frombuffer(good[suffix], np.uint8).copy()
            reach = len(data) if number % 2 else min(len(data), 1024)
            places = rng.integers(4, reach, 1 + 4 * number)
            data[places] = rng.integers(0, 256, len(places))
            yield kind, f"{number}.{suffix}", data.tobytes(), False


def sizes(good: dict[str, bytes], rng: np.random.Generator) -> Make:
    """Pictures that are small as files alone."""
    yield "image", "50000x50000.png", png(50_000, 50_000, zlib.compress(bytes(50_000 * 6251), 1)), True
    yield "image", "stated_50000x50000.png", png(50_000, 50_000, zlib.compress(bytes(1000))), True
    yield "image", "2147483647x1.png", png(2**31 - 1, 1, zlib.compress(bytes(1000))), True
    yield "image", "0x0.png", png(0, 0, zlib.compress(b"\0")), True
    yield "image", "8000x8000.png", png(8000, 8000, zlib.compress(bytes(8000 * 1001), 1)), False
    text = chunk(b"zTXt", b"comment\0\0" + zlib.compress(bytes(200 << 20), 1))
    yield "image", "text_of_200_MiB.png", good["png"][:33] + text + good["png"][33:], False
    profile = chunk(b"iCCP", b"profile\0\0" + zlib.compress(bytes(200 << 20), 1))
    yield "image", "profile_of_200_MiB.png", good["png"][:33] + profile + good["png"][33:], False
    frame = bytearray(good["jpg"])
    at = frame.index(b"\xff\xc0") + 5
    frame[at : at + 4] = struct.pack(">HH", 65_535, 65_535)
    yield "image", "65535x65535.jpg", bytes(frame), True
    yield "image", "65535x65535.gif", good["gif"][:6] + struct.pack("<HH", 65_535, 65_535) + good["gif"][10:], True
    yield "image", "2147483647x2147483647.bmp", patched(good["bmp"], 18, "<ii", 2**31 - 1, 2**31 - 1), True
    yield "image", "negative.bmp", patched(good["bmp"], 18, "<ii", -1, -1), True
    size = bytes.fromhex("2f ff ff ff 0f".replace(" ", ""))  # lossless WebP, 16384 x 16384
    body = b"WEBPVP8L" + struct.pack("<I", 1000) + size + bytes(995)
    yield "image", "16384x16384.webp", b"RIFF" + struct.pack("<I", len(body)) + body, True
    big = struct.pack("<2sHIH", b"II", 42, 8, 2) + struct.pack("<HHII", 256, 4, 1, 10**6)
    big += struct.pack("<HHII", 257, 4, 1, 10**6) + bytes(4)
    yield "image", "1000000x1000000.tiff", big, True
    loop = patched(good["tiff"], len(good["tiff"]) - 4, "<I", 8)
    yield "image", "pages_in_a_circle.tiff", loop, False
    still = PIL.Image.new("P", (2, 2))
    file = BytesIO()
    still.save(file, "GIF", save_all=True, append_images=[PIL.Image.new("P", (2, 2), n % 9) for n in range(3000)])
    yield "image", "3000_frames.gif", file.getvalue(), False


def sounds(good: dict[str, bytes], rng: np.random.Generator) -> Make:
    """Headers of sound that state what cannot be, and samples that are no numbers."""
    data = np.linspace(-0.5, 0.5, 4000, dtype="<f4")
    for name, value, must_fail in (("nan", np.nan, True), ("inf", np.inf, True), ("1e38", 1e38, False)):
        for dtype in ("<f4", "<f8"):
            samples = data.astype(dtype)
            samples[1000] = value
            yield (
                "audio",
                f"{name}{dtype[1:]}.wav",
                riff(samples.tobytes(), code=3, bits=8 * samples.itemsize),
                must_fail,
            )
    pcm = (data * 32767).astype("<i2").tobytes()
    for name, header, must_fail in (
        ("rate_0", {"rate": 0}, True),
        ("rate_1", {"rate": 1}, True),  # an hour and six minutes
        ("rate_2147483648", {"rate": 2**31}, True),
        ("rate_4294967295", {"rate": 2**32 - 1}, True),
        ("channels_0", {"channels": 0}, True),
        ("channels_65535", {"channels": 65_535}, True),
        ("bits_0", {"bits": 0}, False),
        ("bits_255", {"bits": 255}, True),
        ("align_0", {"align": 0}, False),
        ("align_65535", {"align": 65_535}, False),
        ("format_unknown", {"code": 0xABCD}, True),
        ("size_negative", {"size": 2**32 - 8}, False),
        ("size_2_GiB", {"size": 2**31}, False),
        ("size_0", {"size": 0}, False),
    ):
        yield "audio", f"{name}.wav", riff(pcm, **header), must_fail
    info = good["flac"].index(b"fLaC") + 8
    yield "audio", "rate_0.flac", patched(good["flac"], info + 10, ">I", 0x000000F0), False
    yield "audio", "samples_2_to_36.flac", patched(good["flac"], info + 13, ">BI", 0xFF, 2**32 - 1), True
    yield "audio", "block_0.flac", patched(good["flac"], info, ">HH", 0, 0), False
    tag = b"ID3\4\0\0\x7f\x7f\x7f\x7f"  # of 256 MiB, it says
    yield "audio", "tag_without_end.mp3", tag + good["mp3"], False
    cover = struct.pack(">I", 3) + struct.pack(">I", 9) + b"image/png" + bytes(20) + struct.pack(">I", 2**31 - 1)
    block = bytes([6]) + struct.pack(">I", len(cover))[1:] + cover
    yield "audio", "cover_of_2_GiB.flac", good["flac"][: info + 34] + block + good["flac"][info + 34 :], False


def tracks(good: dict[str, bytes], rng: np.random.Generator) -> Make:
    """Containers of video whose tables lie."""
    mp4 = good["mp4"]
    for name, box, offset, layout, values, must_fail in (
        ("duration", b"mvhd", 12, ">II", (1, 2**32 - 1), False),
        ("clock_0", b"mvhd", 12, ">II", (0, 0), False),
        ("track_clock_0", b"mdhd", 12, ">II", (0, 2**32 - 1), False),
        ("track_duration", b"mdhd", 12, ">II", (1, 2**31 - 1), True),
        ("samples", b"stsz", 8, ">I", (2**31 - 1,), True),
        ("times", b"stts", 4, ">II", (1, 2**32 - 1), False),
        ("time_step", b"stts", 8, ">II", (20, 2**31 - 1), True),
        ("chunks", b"stco", 4, ">I", (2**31 - 1,), False),
        ("chunk_offset", b"stco", 8, ">I", (2**32 - 2,), True),
        ("chunk_map", b"stsc", 4, ">I", (2**31 - 1,), False),
        ("size", b"avc1", 24, ">HH", (65_535, 65_535), False),
        ("box_without_end", b"moov", -4, ">I", (2**32 - 1,), False),
        ("box_of_0", b"trak", -4, ">I", (0,), False),
    ):
        yield (
            "video",
            f"{name}.mp4",
            patched(mp4, mp4.index(box) + 4 + (offset if offset > 0 else -8), layout, *values),
            must_fail,
        )
    deep = b""
    for _ in range(3000):
        deep = struct.pack(">I4s", len(deep) + 8, b"moov") + deep
    yield "video", "boxes_in_boxes.mp4", mp4[:32] + deep, True
    for name, element, data in (
        ("width", b"\xb0", b"\x10\xff\xff\xff"),
        ("duration", b"\x44\x89", b"\x88" + struct.pack(">d", 1e300)),
        ("duration_nan", b"\x44\x89", b"\x88" + struct.pack(">d", float("nan"))),
        ("clock", b"\x2a\xd7\xb1", b"\x83\xff\xff\xff"),
    ):
        mkv = good["mkv"]
        at = mkv.index(element) + len(element)
        yield "video", f"{name}.mkv", mkv[:at] + data + mkv[at + len(data) :], False
    # Within all limits, and small, but decoding takes half a minute.
    yield "video", "10000_frames_of_3000x3000.avi", still(3000, 3000, container_format="avi", times=10_000), True
    yield "video", "8000x8000.mkv", still(8000, 8000, container_format="matroska", times=2), False


def playlists(good: dict[str, bytes], rng: np.random.Generator) -> Make:
    """They name other files, which only their readers would open."""
    segments = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n../good.mp4\n#EXT-X-ENDLIST\n"
    remote = segments.replace(b"../good.mp4", b"http://169.254.169.254/latest/meta-data/")
    lists = {
        "hls.m3u8": segments,
        "remote.m3u8": remote,
        "hls.mp4": segments,
        "concat.ffconcat": b"ffconcat version 1.0\nfile '../good.mp4'\n",
        "concat.mkv": b"ffconcat version 1.0\nfile 'file:/etc/passwd'\n",
        "dash.mpd": b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><Period><AdaptationSet>'
        b"<Representation><BaseURL>../good.mp4</BaseURL></Representation></AdaptationSet></Period></MPD>",
        "session.sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n",
        "movie.mov": b"\0\0\0\x20ftypqt  \0\0\0\0qt  \0\0\0\0\0\0\0\0\0\0\0\0",
    }
    for name, data in lists.items():
        yield "video", name, data, True
    yield "audio", "hls_sound.m3u8", segments.replace(b"mp4", b"wav"), True
    yield "audio", "concat.wav", b"ffconcat version 1.0\nfile '../good.wav'\n", True


def documents(good: dict[str, bytes], rng: np.random.Generator) -> Make:
    """Formats that are programs."""
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><image href="file:///etc/passwd"/></svg>'
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\nshowpage\n%%EOF\n"
    pdf = b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"
    for name, data in {"a.svg": svg, "svg.png": svg, "a.eps": eps, "eps.jpg": eps, "a.pdf": pdf}.items():
        yield "image", name, data, True
    entities = b'<!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><svg>&b;</svg>'
    yield "image", "laughs.svg", entities, True


def endless(folder: Path) -> Iterator[Hostile]:
    """Pipes, devices and files that go on."""
    (folder / "endless").mkdir()
    os.mkfifo(folder / "endless" / "pipe.wav")
    os.mkfifo(folder / "endless" / "pipe.png")
    yield Hostile("audio", "endless/pipe.wav", True)
    yield Hostile("image", "endless/pipe.png", True)
    (folder / "endless" / "zero.png").symlink_to("/dev/zero")
    (folder / "endless" / "random.mp4").symlink_to("/dev/urandom")
    yield Hostile("image", "endless/zero.png", True)
    yield Hostile("video", "endless/random.mp4", True)
    for device in ("/dev/zero", "/dev/urandom", "/dev/stdin", "/proc/self/mem"):
        yield Hostile("audio", device, True)
    for name, num_bytes in (("sparse_2_GiB.mp4", 2 << 30), ("sparse_500_MB.mp3", 500_000_000)):
        with (folder / "endless" / name).open("wb") as file:
            file.truncate(num_bytes)
    yield Hostile("video", "endless/sparse_2_GiB.mp4", True)
    yield Hostile("audio", "endless/sparse_500_MB.mp3", True)


def places(folder: Path) -> Iterator[Hostile]:
    """Names that lead elsewhere, nowhere, or in circles."""
    (folder / "places").mkdir()
    (folder / "places" / "folder.png").mkdir()
    yield Hostile("image", "places/folder.png", True)
    (folder / "places" / "circle.png").symlink_to("circle.png")
    (folder / "places" / "there.wav").symlink_to("back.wav")
    (folder / "places" / "back.wav").symlink_to("there.wav")
    (folder / "places" / "gone.mp4").symlink_to("nothing")
    (folder / "places" / "passwd.png").symlink_to("/etc/passwd")
    for kind, name in (("image", "circle.png"), ("audio", "there.wav"), ("video", "gone.mp4"), ("image", "passwd.png")):
        yield Hostile(kind, f"places/{name}", True)  # type: ignore[arg-type]
    for name in ("two\nlines.png", "bell\a.wav", "\x1b[31mred.mp4", "sp ace \u202e gnp.png", "\udcff.png"):
        (folder / "places" / name).write_bytes(b"not media")
        yield Hostile("image", f"places/{name}", True)
    yield Hostile("image", "places/" + 300 * "long" + ".png", True)
    yield Hostile("image", "places/null\0.png", True)
    yield Hostile("image", "../" * 30 + "etc/passwd", True)
    yield Hostile("image", "", True)
    yield Hostile("audio", "file://host/etc/passwd", True)
    yield Hostile("video", "rtsp://127.0.0.1/a.mp4", True)
    yield Hostile("video", "concat:good.mp4|good.mp4", True)
    yield Hostile("image", "data:image/png;base64,////", True)
    yield Hostile("audio", "data:audio/wav;base64,not base64", True)


# ---- pieces ------------------------------------------------------------------------------------


def chunk(name: bytes, data: bytes) -> bytes:
    """Of a PNG."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, pixels: bytes) -> bytes:
    """One bit per pixel, `pixels` compressed."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def patched(data: bytes, at: int, layout: str, *values: int) -> bytes:
    size = struct.calcsize(layout)
    return data[:at] + struct.pack(layout, *values) + data[at + size :]


def riff(
    data: bytes,
    *,
    code: int = 1,
    channels: int = 1,
    rate: int = 16_000,
    bits: int = 16,
    align: int | None = None,
    size: int | None = None,
) -> bytes:
    """A WAV file with any header."""
    align = channels * bits // 8 % 65_536 if align is None else align
    header = struct.pack("<HHIIHH", code, channels, rate, rate * align % 2**32, align, bits)
    body = b"WAVEfmt " + struct.pack("<I", len(header)) + header
    body += b"data" + struct.pack("<I", len(data) if size is None else size) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def still(width: int, height: int, *, container_format: str, times: int) -> bytes:
    """A black frame and, encoded once but written `times` times, the news that nothing changes."""
    file = BytesIO()
    with av.open(file, "w", format=container_format) as container:
        stream: Any = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        frame = av.VideoFrame(width, height, "yuv420p")
        for plane, level in zip(frame.planes, (16, 128, 128), strict=True):
            plane.update(bytes([level]) * plane.buffer_size)
        encoded: list[bytes] = []
        for frame.pts in range(2):
            encoded += map(bytes, stream.encode(frame))
        first, change = encoded
        for number, data in enumerate([first, *[change] * times]):
            packet = av.Packet(data)
            packet.stream, packet.time_base, packet.is_keyframe = stream, Fraction(1, 25), number == 0
            packet.pts = packet.dts = number
            container.mux(packet)
    return file.getvalue()


if __name__ == "__main__":
    print(f"{len(make(Path(sys.argv[1])))} files")
