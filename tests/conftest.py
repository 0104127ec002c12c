def pytest_addoption(parser):
    parser.addoption(
        "--rewrite-transcripts",
        action="store_true",
        help="write tests/transcripts/*.txt anew; be able to explain every difference",
    )
