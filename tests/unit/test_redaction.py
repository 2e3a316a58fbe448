"""What is kept out of every text that a person or another program may read."""

import pytest

from moorage.redaction import is_secret, redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no store: url=s3://key:secret@bucket/x", "no store: url=s3://***@bucket/x"),
        ("http://user@host:1/", "http://***@host:1/"),
        ("mail me@example.com", "mail me@example.com"),
    ],
)
def test_credentials_in_urls_are_hidden(text, shown):
    assert redact(text, {}) == shown


def test_values_of_secret_variables_are_hidden_wherever_they_come_from():
    environ = {"AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI", "HOME": "/home/anna", "MY_TOKEN": "abc"}
    text = "denied: wJalrXUtnFEMI at /home/anna abc"
    assert redact(text, environ) == "denied: *** at /home/anna abc"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("AWS_ACCESS_KEY_ID", True),
        ("spark.hadoop.fs.s3a.access.key", True),
        ("spark.hadoop.fs.s3a.secret.key", True),
        ("spark.kafka.clusters.a.ssl.truststore.password", True),
        ("DB_PASSWD", True),
        ("spark.myjob.apiKey", True),
        ("spark.sql.shuffle.partitions", False),
        ("spark.hadoop.fs.s3a.endpoint", False),
        ("HOME", False),
    ],
)
def test_a_secret_is_known_by_its_name(name, secret):
    assert is_secret(name) is secret
