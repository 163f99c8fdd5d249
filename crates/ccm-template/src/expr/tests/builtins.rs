//! Tests of the built-ins, including dates and durations.

use super::check_all;

#[test]
fn built_ins_on_text() {
    check_all(&[
        ("len('é')", "1"),
        ("trim('__x__', '_') + upper('a') + lower('B')", "xAb"),
        ("upper('straße') + lower('ΑΣ')", "STRAßEασ"),
        (
            "trimPrefix('foobar', 'foo') + trimSuffix('foobar', 'bar')",
            "barfoo",
        ),
        ("split('a,b,c', ',', 2)", "[a b,c]"),
        ("splitAfter('a,b', ',')", "[a, b]"),
        ("split('ab', '')", "[a b]"),
        ("replace('aaa', 'a', 'b', 2)", "bba"),
        ("repeat('ab', 3)", "ababab"),
        ("join(Data.l, '-') + join(Data.l)", "a-b-cabc"),
        (
            "[indexOf('abc', 'c'), lastIndexOf('abca', 'a'), indexOf('a', 'z')]",
            "[2 3 -1]",
        ),
        ("hasPrefix('abc', 'ab') and hasSuffix('abc', 'bc')", "true"),
        ("fromBase64(toBase64('hi'))", "hi"),
        ("fromBase64('aGk\\n=')", "hi"),
        ("'é' matches '^\\\\w$'", "false"),
        ("fromJSON('{\"a\": [1, 2.5]}').a[1]", "2.5"),
        (
            "toJSON({b: [1.5, nil], a: '<'})",
            "{\n  \"a\": \"\\u003c\",\n  \"b\": [\n    1.5,\n    null\n  ]\n}",
        ),
        ("string([1, 'a']) + string(nil)", "[1 a]<nil>"),
    ]);
}

#[test]
fn built_ins_on_numbers() {
    check_all(&[
        (
            "[abs(-3), ceil(1.2), floor(-1.2), round(-2.5)]",
            "[3 2 -2 -3]",
        ),
        ("[int('12'), int(3.9), float('1e3')]", "[12 3 1000]"),
        ("[max(1, [5, 2]), min(Data.nums)]", "[5 1]"),
        ("max([])", "<nil>"),
        (
            "[mean([1, 2, 3]), median(1, 2, 3, 4), mean([])]",
            "[2 2.5 0]",
        ),
        (
            "[bitand(6, 3), bitor(6, 3), bitxor(6, 3), bitnand(6, 3), bitnot(5)]",
            "[2 7 5 4 -6]",
        ),
        (
            "[bitshl(1, 4), bitshl(1, 70), bitshr(-8, 1), bitushr(-1, 63)]",
            "[16 0 -4 1]",
        ),
    ]);
}

#[test]
fn built_ins_on_lists_and_maps() {
    check_all(&[
        ("[first(Data.l), last(Data.l), first([])]", "[a c <nil>]"),
        ("take(Data.l, 2)", "[a b]"),
        ("concat([1], [2, 3])", "[1 2 3]"),
        ("flatten([[1, [2]], 3])", "[1 2 3]"),
        ("uniq([1, 1.0, 2])", "[1 2]"),
        ("reverse(Data.l)", "[c b a]"),
        ("sort(Data.nums, 'desc')", "[3 2 1]"),
        ("sort([2, 1.5, 1])", "[1 1.5 2]"),
        ("keys(Data.m) == ['k'] and values(Data.m) == ['v']", "true"),
        ("fromPairs(toPairs({a: 1}))", "map[a:1]"),
        (
            "[get(Data, 'app'), get(Data.l, 9), get(Data.m, 1 + 1 == 2 ? 'k' : 'z')]",
            "[shop <nil> v]",
        ),
    ]);
}

#[test]
fn dates_and_durations_behave_as_in_go() {
    check_all(&[
        ("date('2024-05-06')", "2024-05-06 00:00:00 +0000 UTC"),
        ("date('2024-05-06') - date('2024-05-01')", "120h0m0s"),
        (
            "date('2024-05-06') + duration('25h')",
            "2024-05-07 01:00:00 +0000 UTC",
        ),
        (
            "date('2024-05-06').Format('Mon Jan _2 2006')",
            "Mon May  6 2024",
        ),
        (
            "date('2024-01-31').AddDate(0, 1, 0).Format('2006-01-02')",
            "2024-03-02",
        ),
        ("date('2024-05-06').Month()", "May"),
        ("int(date('2024-05-06').Month())", "5"),
        ("date('2024-05-06').Unix()", "1714953600"),
        (
            "duration('1h').Minutes() + duration('90s').Minutes()",
            "61.5",
        ),
        ("duration('1h') * 2 > duration('90m')", "true"),
        ("duration('1h7m').Round(duration('15m'))", "1h0m0s"),
        ("now() > date('2020-01-01')", "true"),
        ("map([duration('1h')], #.Hours())", "[1]"),
        ("toJSON(duration('1s'))", "1000000000"),
    ]);
}
