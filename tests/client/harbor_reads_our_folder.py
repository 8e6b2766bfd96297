"""Run by Harbor's interpreter, not by ours: read a job folder with Harbor's own models and say what they see.

Usage: python harbor_reads_our_folder.py FOLDER; prints one JSON object.
"""

import json
import sys
from pathlib import Path

from harbor.models.job.config import JobConfig
from harbor.models.job.lock import JobLock, TrialLock
from harbor.models.job.result import JobResult, JobStats
from harbor.models.trial.artifact_manifest import ArtifactManifestEntry
from harbor.models.trial.config import TrialConfig
from harbor.models.trial.paths import TrialPaths
from harbor.models.trial.result import TrialResult


def read_trial(folder: Path) -> tuple[TrialResult, TrialLock, dict]:
    paths = TrialPaths(folder)
    config = TrialConfig.model_validate_json(paths.config_path.read_text())
    lock = TrialLock.model_validate_json(paths.lock_path.read_text())
    result = TrialResult.model_validate_json(paths.result_path.read_text())
    assert result.config == config
    assert result.trial_name == config.trial_name == folder.name
    assert config.task.get_task_id().get_name() == lock.task.name == result.task_name
    artifacts = []
    if paths.artifacts_manifest_path.exists():
        entries = json.loads(paths.artifacts_manifest_path.read_text())
        manifest = [ArtifactManifestEntry.model_validate(entry) for entry in entries]
        assert all((folder / entry.destination).is_file() for entry in manifest)
        artifacts = [entry.source for entry in manifest]
    return result, lock, {
        "task": result.task_name,
        "agent": result.agent_info.name,
        "rewards": result.verifier_result and result.verifier_result.rewards,
        "reward_valid": result.reward_valid,
        "exceptions": [error.exception_type for error in result.recorded_exceptions()],
        "has_exception_file": paths.exception_message_path.exists(),
        "has_log": paths.log_path.exists(),
        "verifier_output": paths.test_stdout_path.exists() and paths.test_stdout_path.read_text(),
        "environment": config.environment.type and config.environment.type.value,
        "digest": lock.task.digest,
        "artifacts": artifacts,
    }  # fmt: skip


def main(folder: Path) -> dict:
    config = JobConfig.model_validate_json((folder / "config.json").read_text())
    lock = JobLock.model_validate_json((folder / "lock.json").read_text())
    result = JobResult.model_validate_json((folder / "result.json").read_text())
    trials = [read_trial(child) for child in sorted(folder.iterdir()) if child.is_dir()]
    assert sorted(map(repr, lock.trials)) == sorted(repr(own) for _, own, _ in trials)
    counted = JobStats.from_trial_results(
        [trial for trial, _, _ in trials], n_total_trials=result.n_total_trials
    )
    return {
        "id": str(result.id),
        "job_name": config.job_name,
        "datasets": [[dataset.name, dataset.version] for dataset in config.datasets],
        "agents": [agent.name for agent in config.agents],
        "pass_at_k": {key: entry.pass_at_k for key, entry in result.stats.evals.items()},
        "written": count(result.stats),
        "counted": count(counted),
        "trials": [seen for _, _, seen in trials],
    }


def count(stats: JobStats) -> dict:
    """What Harbor itself counts from trial results."""
    numbers = stats.model_dump(exclude={"evals"})
    evals = {
        key: {
            "n_trials": entry.n_trials,
            "n_errors": entry.n_errors,
            "reward_stats": {
                name: {str(float(value)): sorted(names) for value, names in values.items()}
                for name, values in entry.reward_stats.items()
            },
            "exception_stats": {name: sorted(names) for name, names in entry.exception_stats.items()},
        }
        for key, entry in stats.evals.items()
    }
    return {**numbers, "evals": evals}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
