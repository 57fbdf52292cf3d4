"""Root file systems from images: made once, kept by content, removed when they are not used."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from sandbox_suite import Make, config_of, processes_with, sh, spec_of

from whippletree import sandboxes
from whippletree.errors import ImageError, SandboxError
from whippletree.sandboxes import Archive, Build, ImageCache, Reference, Stop, Tree, hostroot
from whippletree.sandboxes import podman as podman_module
from whippletree.sandboxes.images import digest_of_context
from whippletree.sandboxes.podman import Podman

BUSYBOX = shutil.which("busybox") or ""
STATIC = bool(BUSYBOX) and subprocess.run(("ldd", BUSYBOX), capture_output=True, check=False).returncode != 0
PODMAN = shutil.which("podman") or ""
needs_busybox = pytest.mark.skipif(not STATIC, reason="no static busybox here (package busybox-static)")
needs_podman = pytest.mark.skipif(not (PODMAN and STATIC), reason="no podman or no static busybox here")
SUPPORT = sandboxes.probe()
needs_runc = pytest.mark.skipif(bool(SUPPORT.runc), reason=f"runc does not work here: {SUPPORT.runc}")
APPLETS = ("sh", "cat", "id", "ls", "sleep", "env", "touch")


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[ImageCache]:
    config = sandboxes.SandboxConfig(images=str(tmp_path / "images"))
    yield ImageCache(config)
    shutil.rmtree(Podman(config, tmp_path / "images" / "podman").run_root, ignore_errors=True)


def tree(directory: Path, *, marker: str = "x") -> Path:
    """A tar archive of a tiny root file system: busybox, links to it, and two users."""
    root = directory / f"tree-{marker}"
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "etc").mkdir()
    shutil.copy(BUSYBOX, root / "usr" / "bin" / "busybox")
    for name in APPLETS:
        (root / "usr" / "bin" / name).symlink_to("/usr/bin/busybox")
    (root / "bin").symlink_to("usr/bin")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnode:x:1234:1234::/home/node:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\nnode:x:1234:\n")
    (root / "marker").write_text(marker)
    archive = directory / f"{marker}.tar"
    with tarfile.open(archive, "w") as file:
        file.add(root, arcname=".")
    return archive


def context(directory: Path) -> Path:
    made = directory / "context"
    made.mkdir()
    shutil.copy(BUSYBOX, made / "busybox")
    (made / "Dockerfile").write_text(
        "FROM scratch\nCOPY busybox /bin/busybox\nCOPY busybox /bin/sh\nENV FROM_IMAGE=1\nWORKDIR /srv/app\nUSER 77\n"
        'RUN ["/bin/busybox", "touch", "/srv/app/built"]\n'
    )
    return made


@pytest.fixture
async def start(sandbox_root: Path) -> AsyncIterator[Make]:
    made: list[sandboxes.Box] = []

    async def begin(image: sandboxes.RootImage, **fields: object) -> sandboxes.Box:
        spec = spec_of(rootfs=image.rootfs, **fields)
        made.append(sandboxes.create(config_of("runc", sandbox_root), spec, gateway=("127.0.0.1", 9)))
        await made[-1].start()
        return made[-1]

    yield begin
    for box in made:
        await box.stop()


@needs_busybox
def test_an_image_is_made_once_and_kept_by_content(cache: ImageCache, tmp_path: Path) -> None:
    archive = tree(tmp_path)
    first = cache.get(Tree(path=str(archive)))
    (Path(first.rootfs) / "seen").touch()
    shutil.copy(archive, tmp_path / "same.tar")
    assert cache.get(Tree(path=str(tmp_path / "same.tar"))) == first
    assert (Path(first.rootfs) / "seen").exists() and first.bytes > 100_000
    other = cache.get(Tree(path=str(tree(tmp_path, marker="y"))))
    assert other.key != first.key and (Path(other.rootfs) / "marker").read_text() == "y"
    assert [image.key for image in cache.images()] == [first.key, other.key]


@needs_busybox
def test_several_processes_make_one_image(cache: ImageCache, tmp_path: Path) -> None:
    archive = tree(tmp_path)
    code = (
        "import sys; from whippletree import sandboxes as s;"
        "print(s.ImageCache(s.SandboxConfig(images=sys.argv[1])).get(s.Tree(path=sys.argv[2])).key)"
    )
    words = (sys.executable, "-c", code, str(cache.directory), str(archive))
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    keys = {process.communicate(timeout=60)[0].strip() for process in running}
    assert keys == {cache.images()[0].key}
    assert not [path for path in cache.directory.iterdir() if path.name.startswith(".making-")]


@needs_busybox
def test_what_killed_processes_left_is_no_obstacle(cache: ImageCache, tmp_path: Path) -> None:
    archive = Tree(path=str(tree(tmp_path)))
    made = cache.get(archive)
    (cache.directory / made.key / "image.json").unlink()  # killed while it removed the image
    old, new = cache.directory / ".making-old", cache.directory / ".making-new"
    for path in (old, new):
        (path / "rootfs").mkdir(parents=True)
    os.utime(old, (1, 1))
    assert cache.get(archive) == made and cache.images() == [made]
    assert new.exists() and not old.exists()


@needs_runc
@needs_busybox
async def test_sandboxes_run_on_it_and_leave_it_as_it_is(cache: ImageCache, start: Make, tmp_path: Path) -> None:
    image = cache.get(Tree(path=str(tree(tmp_path))))
    one, two = await start(image), await start(image)
    seen = await sh(one, "cat /marker; id -un; ls /usr/bin; echo changed > /tmp/x; ls /home")
    assert seen.output.split() == ["x" + "agent", *sorted(("busybox", *APPLETS)), "agent"]
    assert (await sh(one, "echo gone > /marker; rm /usr/bin/ls; id -u", user="root")).output == "0\n"
    assert (await sh(one, "id -u; id -un", user="node")).output == "1234\nnode\n"
    assert (await sh(two, "cat /marker; ls /usr/bin/ls")).output == "x/usr/bin/ls\n"
    assert (Path(image.rootfs) / "marker").read_text() == "x"
    fetched = await one.get("/tmp/x", tmp_path / "x")
    assert fetched.files == 1


@needs_runc
@needs_busybox
async def test_the_least_recently_used_go_first_but_never_one_in_use(cache: ImageCache, start: Make, tmp_path: Path) -> None:
    images = [cache.get(Tree(path=str(tree(tmp_path, marker=marker)))) for marker in "abc"]
    box = await start(images[0])
    long_ago = time.time() - 1000
    for number, image in enumerate(images):
        os.utime(cache.directory / image.key, (long_ago + number, long_ago + number))
    small = ImageCache(sandboxes.SandboxConfig(images=str(cache.directory), images_gb=images[0].bytes * 1.5 / 2**30))
    assert small.trim() == [images[1].key, images[2].key]
    assert [image.key for image in small.images()] == [images[0].key]
    assert (await sh(box, "cat /marker")).output == "a"
    await box.stop()
    none = ImageCache(sandboxes.SandboxConfig(images=str(cache.directory), images_gb=0))
    assert none.trim() == [images[0].key] and none.images() == []
    fresh = none.get(Tree(path=str(tmp_path / "a.tar")))  # what was asked for just now stays
    assert none.images() == [fresh]


@needs_runc
@needs_busybox
async def test_the_images_user_runs_commands_and_owns_what_is_copied_in(cache: ImageCache, start: Make, tmp_path: Path) -> None:
    archive = tmp_path / "owned.tar"
    (tmp_path / "given").write_text("given")
    subprocess.run(("tar", "--extract", "--file", str(tree(tmp_path)), "--one-top-level=own"), cwd=tmp_path, check=True)
    for path, mode, owner in (("srv", 0o710, 1234), ("srv/app", 0o750, 1234), ("srv/app/mine", 0o640, 1234)):
        target = tmp_path / "own" / path
        if path.endswith("mine"):
            target.write_text("mine")
        else:
            target.mkdir()
        target.chmod(mode)
        os.chown(target, owner, owner)
    (tmp_path / "own" / "linked").symlink_to("/srv/app")
    (tmp_path / "own" / "outside").symlink_to(tmp_path)  # of the host, and not there inside
    with tarfile.open(archive, "w") as file:
        file.add(tmp_path / "own", arcname=".")
    image = cache.get(Tree(path=str(archive)))
    files = ((str(tmp_path / "given"), "/srv/app/given"),)
    box = await start(image, workdir="/srv/app", user="node", files=files)
    seen = await sh(box, "id -u; cat mine given; echo; ls -ln; echo new > new; ls -lnd /srv /srv/app; echo $USER")
    lines = seen.output.splitlines()
    assert lines[:2] == ["1234", "minegiven"] and seen.exit_code == 0
    assert [line.split()[0] + line.split()[2] for line in lines if "/srv" in line] == ["drwx--x---1234", "drwxr-x---1234"]
    assert {line.split()[2] for line in lines if line.endswith(("mine", " given"))} == {"1234"} and lines[-1] == "node"
    (tmp_path / "late").write_text("late")
    await box.put(tmp_path / "late", "/srv/app/late")
    assert (await sh(box, "echo more >> late; cat late new")).output == "latemore\nnew\n"
    assert (await sh(box, "id -u; id -g; echo x > /marker", user="1234:0")).output.startswith("1234\n0\n")
    root = await start(image, workdir="/srv/app", user="root")
    assert (await sh(root, "id -u; echo x >> mine && echo written")).output == "0\nwritten\n"
    below = await start(image, workdir="/usr/share/app", user="root")
    assert (await sh(below, "pwd; ls /usr/bin/cat")).output == "/usr/share/app\n/usr/bin/cat\n"
    linked = await start(image, workdir="/linked", user="node")
    assert (await sh(linked, "pwd -P; cat mine")).output == "/srv/app\nmine"
    outside = await start(image, workdir="/outside", user="root")
    assert (await sh(outside, "ls")).output == ""
    for workdir in ("/usr", "/proc/x", "/"):
        with pytest.raises(SandboxError, match="cannot be the work directory"):
            await start(image, workdir=workdir)


@needs_podman
def test_a_build_is_stopped_from_another_thread_and_leaves_nothing(cache: ImageCache, tmp_path: Path) -> None:
    made = context(tmp_path)
    mark = f"46{os.getpid()}"
    (made / "Dockerfile").write_text(f'FROM scratch\nCOPY busybox /bin/busybox\nRUN ["/bin/busybox", "sleep", "{mark}"]\n')
    stop, said = Stop(), list[str]()

    def build() -> None:
        try:
            cache.get(Build(context=str(made)), stop=stop)
        except ImageError as error:
            said.append(error.cause)

    thread = threading.Thread(target=build)
    thread.start()
    while not processes_with(f"sleep\0{mark}") and thread.is_alive():
        time.sleep(0.02)
    stop.ask()
    thread.join()
    assert said == ["the making of the image was stopped"] and not processes_with(f"sleep\0{mark}")
    podman = Podman(sandboxes.SandboxConfig(), cache.directory / "podman")
    assert podman.left() == [] and cache.images() == [] and cache.find(Build(context=str(made))) is None
    assert "/merged" not in mounts_below(cache.directory)
    assert not [path for path in (cache.directory / "podman").iterdir() if path.name == "tmp" and any(path.iterdir())]
    with pytest.raises(ImageError, match="stopped"):
        cache.get(Build(context=str(made)), stop=stop)


@needs_busybox
def test_an_image_that_is_held_stays(cache: ImageCache, tmp_path: Path) -> None:
    image = cache.get(Tree(path=str(tree(tmp_path))))
    lock = cache.hold(image)
    os.utime(cache.directory / image.key, (1, 1))
    none = ImageCache(sandboxes.SandboxConfig(images=str(cache.directory), images_gb=0))
    assert lock >= 0 and none.trim() == []
    os.close(lock)
    assert none.trim() == [image.key] and cache.hold(image) == -1


@needs_podman
async def test_a_context_is_built_and_an_archive_imported(cache: ImageCache, tmp_path: Path) -> None:
    made = context(tmp_path)
    built, missing = await cache.prewarm([Build(context=str(made)), Archive(path=str(tmp_path / "none.tar"))])
    assert isinstance(missing, SandboxError) and "none.tar" in missing.cause
    assert isinstance(built, sandboxes.RootImage), built
    assert (Path(built.rootfs) / "srv" / "app" / "built").exists()
    assert built.environment["FROM_IMAGE"] == "1" and (built.workdir, built.user) == ("/srv/app", "77")
    assert cache.get(Build(context=str(made))) == built
    (made / "Dockerfile").write_text("FROM scratch\nRUN nothing\n")
    with pytest.raises(SandboxError, match="podman build: "):
        cache.get(Build(context=str(made)))
    short = Path(f"/tmp/wt-test-run-{os.getpid()}")
    podman = (PODMAN, "--root", str(tmp_path / "p"), "--runroot", str(short), "--events-backend", "none")
    (made / "Dockerfile").write_text("FROM scratch\nCOPY busybox /bin/sh\n")
    for words in (
        ("build", "--quiet", "--isolation", "chroot", "--tag", "wt-archive", str(made)),
        ("save", "--quiet", "--format", "oci-archive", "--output", str(tmp_path / "i.tar"), "wt-archive"),
    ):
        await asyncio.to_thread(subprocess.run, (*podman, *words), check=True, capture_output=True)
    imported = cache.get(Archive(path=str(tmp_path / "i.tar")))
    assert (Path(imported.rootfs) / "bin" / "sh").stat().st_size == Path(BUSYBOX).stat().st_size
    for storage in (tmp_path / "p" / "overlay", cache.directory / "podman" / "root" / "overlay"):
        subprocess.run(("umount", str(storage)), check=False, capture_output=True)
    shutil.rmtree(short, ignore_errors=True)


def test_a_podman_that_hangs_or_is_missing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(podman_module, "_CLEAN_SECONDS", 1.0)  # it hangs then too
    made = tmp_path / "context"
    made.mkdir()
    (made / "Dockerfile").write_text("FROM scratch\n")
    hanging = tmp_path / "podman"
    hanging.write_text("#!/bin/sh\nsleep 600\n")
    hanging.chmod(0o755)
    config = sandboxes.SandboxConfig(images=str(tmp_path / "images"), podman=str(hanging), image_seconds=0.5)
    with pytest.raises(SandboxError, match=r"podman build did not end within 0\.5 s"):
        ImageCache(config).get(Build(context=str(made)))
    away = msgspec.structs.replace(config, podman="/no/such/podman")
    with pytest.raises(SandboxError, match=r"podman"):
        ImageCache(away).get(Reference(name="debian:12"))
    assert not [path for path in (tmp_path / "images").iterdir() if path.name.startswith(".making-")]


@pytest.mark.parametrize("stopped", [False, True])
def test_what_a_build_started_has_ended_when_it_is_given_up(tmp_path: Path, stopped: bool) -> None:
    """No wait between the error and the look; what was started holds none of its outputs, and is not its child."""
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    mark = f"44{os.getpid()}"
    program = tmp_path / "podman"
    many = f"for one in $(seq 30); do (sleep {mark} >/dev/null 2>&1 &); done; sleep {mark}"
    program.write_text(f'#!/bin/sh\ncase "$*" in *" build "*) {many} ;; esac\n')
    program.chmod(0o755)
    config = sandboxes.SandboxConfig(images=str(tmp_path / "images"), podman=str(program), image_seconds=100 if stopped else 1)
    for number in range(2):
        stop, said = Stop(), list[str]()
        built = tmp_path / f"context-{number}"
        built.mkdir()
        (built / "Dockerfile").write_text(f"FROM scratch\nENV N={number}\n")

        def build(stop: Stop = stop, said: list[str] = said, built: Path = built) -> None:
            try:
                ImageCache(config).get(Build(context=str(built)), stop=stop)
            except ImageError as error:
                said += [error.cause, *map(str, processes_with(f"sleep\0{mark}"))]

        thread = threading.Thread(target=build)
        thread.start()
        while stopped and len(processes_with(f"sleep\0{mark}")) < 31:
            time.sleep(0.01)
        if stopped:
            stop.ask()
        thread.join()
        assert said == ["the making of the image was stopped" if stopped else "podman build did not end within 1 s"]


def test_the_digest_is_of_names_modes_links_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    seen = [digest_of_context(tmp_path, "Dockerfile")]
    (tmp_path / "a").chmod(0o755)
    seen.append(digest_of_context(tmp_path, "Dockerfile"))
    (tmp_path / "a").write_text("y")
    seen.append(digest_of_context(tmp_path, "Dockerfile"))
    (tmp_path / "l").symlink_to("a")
    seen.append(digest_of_context(tmp_path, "Dockerfile"))
    (tmp_path / "l").unlink()
    (tmp_path / "l").symlink_to("b")
    seen += [digest_of_context(tmp_path, "Dockerfile"), digest_of_context(tmp_path, "Other")]
    assert len(set(seen)) == 6
    os.utime(tmp_path / "a", (1, 1))
    assert digest_of_context(tmp_path, "Other") == seen[-1]


def test_links_of_an_image_are_followed_inside_it(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    (tmp_path / "usr" / "sh").write_text("")
    (tmp_path / "bin").symlink_to("/usr")
    (tmp_path / "up").symlink_to("../../../bin/sh")
    (tmp_path / "loop").symlink_to("loop")
    root = str(tmp_path)
    assert hostroot.resolve(root, "/bin/sh") == hostroot.resolve(root, "/up") == tmp_path / "usr" / "sh"
    assert hostroot.resolve(root, "/loop") is None and hostroot.resolve(root, "/bin/none") is None
    with pytest.raises(ValueError, match="without /bin/sh"):
        hostroot.shell(str(tmp_path / "usr"))


async def test_an_image_is_refused_where_a_backend_has_none(make: Make) -> None:
    with pytest.raises(SandboxError, match="not a root file system"):
        await make("process", rootfs="/nowhere")


@needs_podman
@pytest.mark.skipif(not shutil.which("setpriv"), reason="no setpriv here")
def test_a_build_ends_with_the_process_that_waits_for_it(cache: ImageCache, tmp_path: Path) -> None:
    made = context(tmp_path)
    mark = f"45{os.getpid()}"
    (made / "Dockerfile").write_text(f'FROM scratch\nCOPY busybox /bin/busybox\nRUN ["/bin/busybox", "sleep", "{mark}"]\n')
    code = (
        "import sys; from whippletree import sandboxes as s;"
        "s.ImageCache(s.SandboxConfig(images=sys.argv[1])).get(s.Build(context=sys.argv[2]))"
    )
    with subprocess.Popen((sys.executable, "-c", code, str(cache.directory), str(made))) as builder:
        while not processes_with(f"sleep\0{mark}") and builder.poll() is None:
            time.sleep(0.02)
        builder.kill()
    limit = time.monotonic() + 60
    while processes_with(f"sleep\0{mark}"):
        assert time.monotonic() < limit, "the build goes on"
        time.sleep(0.02)
    podman = Podman(sandboxes.SandboxConfig(), cache.directory / "podman")
    assert len(podman.left()) == 1
    cache.tidy()
    assert podman.left() == [] and "/merged" not in mounts_below(cache.directory)


def mounts_below(directory: Path) -> str:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return "\n".join(line for line in lines if line.split()[1].startswith(str(directory)))
