"""Where the secret of a start is, and whom it is kept from."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from recycle.errors import UserError
from recycle.runtime.launch.meet import secret as secrets
from recycle.runtime.launch.meet.secret import SECRET, TOKEN, TOKEN_FILE, given_secret, secret_in, token_of

GIVEN = "0123456789abcdef"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where there is no folder of the user's own, that of a host's secret is below this one."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(secrets.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path / f"recycle-{os.geteuid()}"


def test_all_who_come_at_once_find_the_same_which_is_its_owners_alone(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: secret_in(tmp_path / "run"), range(32)))
    assert len(found) == 1
    assert len(found.pop()) == 64
    assert (tmp_path / "run" / SECRET).stat().st_mode & 0o777 == 0o600


def test_on_a_host_it_is_in_a_folder_of_the_users(place, tmp_path, monkeypatch):
    assert secrets.secret_of_host() == secrets.secret_of_host() == (place / SECRET).read_text()
    assert place.stat().st_mode & 0o777 == 0o700
    # Nor is it the folder in which a process was started.
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    assert secrets.secret_of_host() == (place / SECRET).read_text()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert secrets.secret_of_host() == (tmp_path / "recycle" / SECRET).read_text()


def link(place):
    (place.parent / "elsewhere").mkdir(0o700)
    place.symlink_to(place.parent / "elsewhere")


def opened(place):
    place.mkdir()
    place.chmod(0o755)


def file_for_all(place):
    place.mkdir(0o700)
    (place / SECRET).write_text("0" * 64)
    (place / SECRET).chmod(0o644)


def file_elsewhere(place):
    place.mkdir(0o700)
    (place.parent / "known").write_text("0" * 64)
    (place / SECRET).symlink_to(place.parent / "known")


def empty_file(place):
    place.mkdir(0o700)
    (place / SECRET).touch(0o600)


@pytest.mark.parametrize("squat", [link, opened, file_for_all, file_elsewhere, empty_file])
def test_what_a_stranger_may_have_made_is_refused_with_the_remedy(place, squat, monkeypatch):
    monkeypatch.setattr(secrets, "_PATIENCE", 0.0)
    squat(place)
    with pytest.raises(UserError, match=f"recycle-.*; (remove it, or )?name a file with a secret in {TOKEN_FILE}"):
        secrets.secret_of_host()


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can be another user")
@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_a_folder_of_another_users_is_refused(place, mode):
    place.mkdir()
    place.chmod(mode)
    os.chown(place, 65534, 65534)
    with pytest.raises(UserError, match="it is no folder of this user's alone"):
        secrets.secret_of_host()


def test_a_user_names_a_file_or_the_secret_itself(tmp_path):
    file, other = tmp_path / "one", tmp_path / "other"
    file.write_text(f"{GIVEN}\n")
    other.write_text("f" * 32)
    assert given_secret(None, {}) == ""
    assert given_secret(file, {TOKEN_FILE: str(other)}) == GIVEN
    assert given_secret(None, {TOKEN_FILE: str(file), TOKEN: "x" * 16}) == GIVEN
    assert given_secret(None, {TOKEN: f" {GIVEN} "}) == GIVEN


def test_what_is_no_secret_is_refused(tmp_path):
    file = tmp_path / "short"
    for content in ("", "guessed\n"):
        file.write_text(content)
        with pytest.raises(UserError, match="short: a secret has 16 characters at least"):
            given_secret(file, {})
    with pytest.raises(UserError, match="RECYCLE_TOKEN: a secret has 16"):
        given_secret(None, {TOKEN: "guessed"})
    with pytest.raises(UserError, match="nowhere: cannot be read"):
        given_secret(tmp_path / "nowhere", {})


def test_the_token_of_a_run_follows_from_both():
    assert len({token_of(secret, nonce) for secret in ("a", "b") for nonce in ("1", "2")}) == 4
    assert token_of("a", "1") == token_of("a", "1")
