import pytest

from moorage.cli.redact import redact


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
