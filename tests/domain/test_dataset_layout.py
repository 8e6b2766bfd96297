"""Which directories of a corpus are tasks, and which of them a manifest imports."""

from __future__ import annotations

import pytest

from domain.dataset_layout import find_tasks
from domain.errors import TaskError
from domain.manifests import LocalTask, Manifest, check_dataset_files, match_manifest, read_manifest

D1, D2 = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def manifest_text(tasks: str, more: str = "") -> str:
    return f'[dataset]\nname = "acme/set"\nversion = "1.0"\n{more}\n{tasks}'


def task_ref(name: str, digest: str = D1) -> str:
    return f'[[tasks]]\nname = "{name}"\ndigest = "{digest}"\n'


def manifest(*refs: str) -> Manifest:
    return read_manifest(manifest_text("".join(refs)))


def test_a_root_task_is_named_after_the_directory() -> None:
    layout = find_tasks(["task.toml", "instruction.md", "tests/test.sh", "docs/x"], "my task")
    assert [(task.name, task.prefix) for task in layout.tasks] == [("my task", "")]
    assert layout.tasks[0].own_paths(["tests/test.sh"]) == {"tests/test.sh"}


@pytest.mark.parametrize("other", ["tasks/a/task.toml", "a/task.toml"])
def test_a_root_task_beside_other_tasks_is_ambiguous(other: str) -> None:
    with pytest.raises(TaskError, match="ambiguous") as caught:
        find_tasks(["task.toml", other], "x")
    assert caught.value.code == "import_failed"


def test_every_visible_child_of_tasks_is_a_task() -> None:
    paths = [
        "README.md",
        "src/x",
        "tasks/b é/task.toml",
        "tasks/a/task.toml",
        "tasks/a/tests/t",
        "tasks/.ci/x",
    ]
    layout = find_tasks([*paths, "tasks/notes.txt"], "x")
    assert [(task.name, task.prefix) for task in layout.tasks] == [("a", "tasks/a/"), ("b é", "tasks/b é/")]
    assert layout.tasks[0].own_paths(paths) == {"task.toml", "tests/t"}
    assert layout.files_prefix == "tasks/"


def test_without_tasks_the_children_of_the_root_are_tasks() -> None:
    layout = find_tasks(["a/task.toml", "b/task.toml", "README.md", ".github/x"], "x")
    assert ([task.name for task in layout.tasks], layout.files_prefix) == (["a", "b"], "")


@pytest.mark.parametrize(
    ("paths", "told"),
    [
        (["a/task.toml", "docs/x"], "docs/task.toml: missing"),
        (["tasks/a/task.toml", "tasks/lib/x"], "tasks/lib/task.toml: missing"),
        (["README.md"], "no task"),
        (["tasks/README.md", "a/task.toml"], "no task"),
        ([], "no task"),
    ],
)
def test_a_layout_without_tasks_or_with_strangers_is_refused(paths: list[str], told: str) -> None:
    with pytest.raises(TaskError, match=told):
        find_tasks(paths, "x")


def test_the_manifest_of_the_tasks_directory_comes_first() -> None:
    paths = ["tasks/a/task.toml", "dataset.toml"]
    assert find_tasks(paths, "x").manifest_path == "dataset.toml"
    both = find_tasks([*paths, "tasks/dataset.toml"], "x")
    assert (both.manifest_path, both.files_prefix) == ("tasks/dataset.toml", "tasks/")


def test_a_manifest_is_read() -> None:
    read = read_manifest(
        manifest_text(
            task_ref("acme/a"),
            'description = "d"\nauthors = [{name = "A"}]\nkeywords = ["k"]\n[[files]]\npath = "README.md"\n'
            'digest = ""',
        )
    )
    assert (read.short_name, read.dataset.version, read.files[0].digest) == ("set", "1.0", None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "dataset: "),
        (manifest_text(""), "tasks: "),
        (manifest_text(task_ref("a")), r"tasks\[0\].name: "),
        (manifest_text(task_ref("acme/..a")), r"tasks\[0\].name: "),
        (manifest_text(task_ref("acme/a..b")), "must not contain"),
        (manifest_text(task_ref("acme/a", "sha256:" + "A" * 64)), r"tasks\[0\].digest: "),
        (manifest_text(task_ref("acme/a"), 'odd = "x"'), "dataset.odd: "),
        ("odd = 1\n" + manifest_text(task_ref("acme/a")), "odd: "),
        (manifest_text(task_ref("acme/a") + '[[files]]\npath = "d/x"'), r"files\[0\].path: "),
        (manifest_text(task_ref("acme/a")).replace('"1.0"', '""'), "dataset.version: "),
        ("[", "not TOML"),
    ],
)
def test_a_malformed_manifest_is_refused_by_field(text: str, told: str) -> None:
    with pytest.raises(TaskError, match=f"^dataset.toml: .*{told}") as caught:
        read_manifest(text)
    assert caught.value.code == "import_failed"


def test_only_listed_tasks_are_imported_by_declared_name_then_directory() -> None:
    tasks = [
        LocalTask(name="one", declared_name="acme/b", digest=D1),
        LocalTask(name="b", declared_name=None, digest=D2),
        LocalTask(name="c", declared_name="x/y", digest=D2),
    ]
    listed = manifest(task_ref("acme/b"), task_ref("acme/c", D2), task_ref("acme/b"))
    assert match_manifest(listed, tasks) == ["c", "one"]


@pytest.mark.parametrize(
    ("refs", "code"),
    [
        ([task_ref("acme/none")], "manifest_task_missing"),
        ([task_ref("acme/a", D2)], "manifest_digest_mismatch"),
        ([task_ref("acme/twin")], "import_failed"),
        ([task_ref("acme/a"), task_ref("other/a", D2)], "import_failed"),
    ],
)
def test_a_manifest_that_does_not_fit_the_corpus_has_its_code(refs: list[str], code: str) -> None:
    tasks = [
        LocalTask(name="a", declared_name=None, digest=D1),
        LocalTask(name="t1", declared_name="acme/twin", digest=D1),
        LocalTask(name="t2", declared_name="acme/twin", digest=D1),
    ]
    with pytest.raises(TaskError) as caught:
        match_manifest(manifest(*refs), tasks)
    assert caught.value.code == code


def test_dataset_files_are_checked_and_custom_metrics_refused() -> None:
    listed = read_manifest(manifest_text(task_ref("acme/a") + f'[[files]]\npath = "x"\ndigest = "{D1}"'))
    check_dataset_files(listed, {"x"}, {"x": D1})
    for beside, digests, code in (
        ({"x"}, {"x": D2}, "manifest_digest_mismatch"),
        (set[str](), dict[str, str](), "import_failed"),
        ({"x", "metric.py"}, {"x": D1}, "custom_metric_not_supported"),
    ):
        with pytest.raises(TaskError) as caught:
            check_dataset_files(listed, beside, digests)
        assert caught.value.code == code
    with pytest.raises(TaskError, match=r"metric\.py"):
        check_dataset_files(None, {"metric.py"}, {})
