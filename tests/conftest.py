import signal

# A shell that starts the tests in the background has them ignore Ctrl-C, and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption(
        "--rewrite-transcripts",
        action="store_true",
        help="write tests/transcripts/*.txt anew; be able to explain every difference",
    )
