"""`python -m moorage.cluster`."""

import signal

if __name__ == "__main__":
    # Before the imports, which take seconds: a signal meanwhile must not end a process that has
    # said nothing yet.
    early: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _frame: early.append(got))

    from moorage_state.core_dumps import no_core_dumps
    from moorage_state.import_path import standard_library_first

    standard_library_first()
    no_core_dumps()

    from moorage.cluster.main import main

    main(early)
