"""`evolve run`, also named `evolve job start`: start a job, and follow it if asked."""

from __future__ import annotations

import uuid
from dataclasses import replace

from cli.client import connect
from cli.errors import NotInThisRelease
from cli.flag_groups import with_flag_groups
from cli.output import hint, is_terminal, print_json, say
from cli.publishing import name_directory, publish_once
from cli.run_flags import FollowFlags, LaterFlags, RunFlags


@with_flag_groups
def start_job(flags: RunFlags, follow: FollowFlags, later: LaterFlags) -> None:
    """Start a job: every selected task with every arm. Prints the job's id.

    `evolve job start` is the same as `evolve run`. Every agent runs with every model; another mix of arms
    is a config file's. The flags --skills, --secret, --secret-inline, --analyze… and --system-log are
    refused: they are not in this release.
    """
    if (asked := later.asked()) is not None:
        raise NotInThisRelease(asked)
    from cli.jobspec import job_body  # here: yaml and models, which `job list` does without

    published = None
    if flags.directory is not None:
        published = name_directory(flags.directory)
        flags = replace(flags, datasets=[*(flags.datasets or ()), f"{published.name}@{published.version}"])
    body = job_body(flags)
    if follow.print_config:
        print_json(body)
        return
    with connect() as client:
        if published is not None:
            publish_once(client, published, flags.org)
        # The key lets the request be sent again if its answer is lost: still one job.
        job = client.post("/api/jobs", body, idempotency_key=str(uuid.uuid4()))
        job_id = str(job["id"])
        if follow.watch:
            from cli.watch import watch_job

            watch_job(client, job_id, as_json=follow.as_json, quiet=follow.quiet)
        elif follow.as_json:
            print_json(job)
        else:
            say(job_id)
            if is_terminal():
                hint(f"follow it with: evolve job watch {job_id}")
