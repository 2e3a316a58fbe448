"""What a job says of the defaults that it goes by, and when it tells of others. Pure."""

from moorage_operator.decide.draft import Draft

_FEW = 8


def show_profile(draft: Draft) -> None:
    """Keep the defaults that the spec was judged with, and tell of another profile once."""
    before, now = draft.world.status.profile, draft.world.profile
    draft.put(profile=now)
    taken, old = (now.digest if now else ""), (before.digest if before else "")
    waiting = now.waiting if now else ""
    if taken != old and draft.attempt.number > 0:
        name = now.name if now else "none"
        text = f"The job goes by profile {name} from now on, as far as its own spec says nothing"
        draft.tell("Normal", "ProfileTaken", text, f"{draft.attempt.number}-{taken}")
    if waiting and waiting != (before.waiting if before else ""):
        draft.tell(
            "Normal", "ProfileWaits", waiting_text(draft), f"{draft.attempt.number}-{waiting}"
        )


def waiting_text(draft: Draft) -> str:
    """What becomes of a profile that says something else by now; empty if it does not."""
    profile, fields = draft.world.profile, draft.world.profile_waits
    if profile is None or not profile.waiting:
        return ""
    more = f" and {len(fields) - _FEW} more" if len(fields) > _FEW else ""
    return (
        f"the profile has changed by what needs a restart ({', '.join(fields[:_FEW])}{more}); it "
        "is taken with the next edit that restarts the job, or set moorage.dev/restart"
    )
