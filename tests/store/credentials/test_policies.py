"""Session policies: what they name, and what they refuse to."""

import json

import pytest

from duckicelake.errors import Unsupported
from duckicelake.store.vending import LONGEST_POLICY, CredentialScope, format_policy, is_on_s3, parse_partition, split_reads

T1 = "s3://lake/data/main/t1/"
LOCATION = "s3://lake/iceberg/main/t1-0190/"


def test_reading_is_getting_and_listing() -> None:
    """In the folders, and single objects; nothing else."""
    read, listed = json.loads(format_policy(CredentialScope((T1,), ("s3://other/f.parquet",))))["Statement"]
    assert read == {
        "Effect": "Allow",
        "Action": ["s3:GetObject"],
        "Resource": ["arn:aws:s3:::lake/data/main/t1/*", "arn:aws:s3:::other/f.parquet"],
    }
    assert listed["Action"] == ["s3:ListBucket"]
    assert listed["Resource"] == ["arn:aws:s3:::lake"]
    assert listed["Condition"] == {"StringLike": {"s3:prefix": ["data/main/t1/", "data/main/t1/*"]}}


def test_writing_is_at_the_location_alone() -> None:
    """Whoever may not read gets no more than that."""
    [write] = json.loads(format_policy(CredentialScope(writable=(LOCATION,))))["Statement"]
    assert write["Resource"] == ["arn:aws:s3:::lake/iceberg/main/t1-0190/*"]
    assert "s3:GetObject" not in write["Action"]


def test_a_policy_is_the_same_for_the_same_scope() -> None:
    """Keys are kept by it."""
    one, other = (format_policy(CredentialScope((T1, LOCATION), (), (LOCATION,))) for _ in range(2))
    assert one == other


NAMES = ["*", "t?", "${aws:username}", 'a"b', "a\\b", "a b", "t%2f", "ü", "\u212a", "a\nb", "..", ".", "a//b", "{", "'", "~", ""]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("where", ["folder", "file", "writable"])
def test_names_that_could_mean_more_are_refused(where: str, name: str) -> None:
    """Wildcards, variables, quotes, escapes, steps, letters that fold to others; and a whole bucket."""
    uri = f"s3://lake/{name}" if name else "s3://lake"
    scopes = {"folder": CredentialScope((uri + "/",)), "file": CredentialScope(files=(uri,))}
    scope = (scopes | {"writable": CredentialScope(writable=(uri + "/",))})[where]
    with pytest.raises(Unsupported):
        format_policy(scope)


def test_what_does_not_fit_is_refused() -> None:
    """At the very character that STS would refuse, and not before."""
    fitting = CredentialScope((T1,), tuple(f"s3://lake/f{number:04}" for number in range(60)))
    spare = LONGEST_POLICY - len(format_policy(fitting))
    assert 0 < spare < 1000
    for more, fits in ((spare, True), (spare + 1, False)):
        name = "x" * (more - len(',"arn:aws:s3:::lake/"'))
        scope = CredentialScope(fitting.folders, (*fitting.files, f"s3://lake/{name}"))
        if fits:
            assert len(format_policy(scope)) == LONGEST_POLICY
        else:
            with pytest.raises(Unsupported, match="too many places"):
                format_policy(scope)


@pytest.mark.parametrize(
    ("role_arn", "partition"),
    [
        ("arn:aws:iam::123456789012:role/lake", "aws"),
        ("arn:aws-cn:iam::123456789012:role/lake", "aws-cn"),
        ("arn:aws-us-gov:iam::123456789012:role/a/lake", "aws-us-gov"),
        ("arn:minio:iam:::role/lake", "aws"),
        ("arn:xxx:xxx:xxx:xxxx", "aws"),
        ("arn:aws*:iam::1:role/lake", "aws"),
        ("lake", "aws"),
    ],
)
def test_resources_are_named_as_the_role_is(role_arn: str, partition: str) -> None:
    """In each partition of AWS by its own name, in every statement; other stores know one name alone."""
    found = parse_partition(role_arn)
    assert found == partition
    scope = CredentialScope((T1,), ("s3://other/f",), (LOCATION,))
    policies = [format_policy(scope, found), *(each for each, _ in split_reads([T1], found))]
    told = [resource for policy in policies for each in json.loads(policy)["Statement"] for resource in each["Resource"]]
    assert len(told) == 5
    assert {resource.partition(":s3:::")[0] for resource in told} == {f"arn:{partition}"}


def test_local_folders_have_no_keys() -> None:
    """Nothing is vended for them."""
    assert is_on_s3(CredentialScope((T1,)))
    assert not is_on_s3(CredentialScope((T1,), ("file:///a/b",)))
