//! Tests of parsing and formatting times; durations are tested in their module.

use super::*;

fn read_in(zone: &str, layout: &str, text: &str) -> String {
    match Time::parse(layout, text, &Zone::load(zone).unwrap()) {
        Ok(time) => time.to_string(),
        Err(err) => err.to_string(),
    }
}

fn read(layout: &str, text: &str) -> String {
    read_in("UTC", layout, text)
}

fn sample() -> Time {
    let zone = Zone::load("Europe/Berlin").unwrap();
    Time::from_unix(1_700_000_000, zone).unwrap()
}

#[test]
fn common_layouts_are_read() {
    for (layout, text, expected) in [
        ("2006-01-02", "2024-05-06", "2024-05-06 00:00:00 +0000 UTC"),
        ("15:04:05", "12:30:00", "0000-01-01 12:30:00 +0000 UTC"),
        (
            "2006-01-02T15:04:05Z07:00",
            "2024-05-06T01:02:03.5+02:00",
            "2024-05-06 01:02:03.5 +0200 +0200",
        ),
        (
            "Mon, 02 Jan 2006 15:04:05 MST",
            "Mon, 06 May 2024 01:02:03 GMT",
            "2024-05-06 01:02:03 +0000 GMT",
        ),
        (
            "Jan _2 2006 3:04PM",
            "May  6 2024 1:05PM",
            "2024-05-06 13:05:00 +0000 UTC",
        ),
        (
            "Jan 2, 2006 at 3:04pm (-0700)",
            "Nov 14, 2023 at 11:13pm (+0100)",
            "2023-11-14 23:13:00 +0100 +0100",
        ),
        ("2006 002", "2024 060", "2024-02-29 00:00:00 +0000 UTC"),
        ("2006 __2", "2024   1", "2024-01-01 00:00:00 +0000 UTC"),
    ] {
        assert_eq!(read(layout, text), expected, "{text}");
    }
}

#[test]
fn errors_name_the_part_that_does_not_fit() {
    for (layout, text, reason) in [
        (
            "2006-01-02",
            "hello",
            "parsing time \"hello\" as \"2006-01-02\": cannot parse \"hello\" as \"2006\"",
        ),
        (
            "2006T- 01",
            "2024T+05",
            "parsing time \"2024T+05\" as \"2006T- 01\": cannot parse \"+05\" as \"T- \"",
        ),
        (
            "2006",
            "é",
            r#"parsing time "\xc3\xa9" as "2006": cannot parse "\xc3\xa9" as "2006""#,
        ),
        (
            "2006-01-02",
            "2024-13-01",
            "parsing time \"2024-13-01\": month out of range",
        ),
        (
            "2006-01-02",
            "2023-02-29",
            "parsing time \"2023-02-29\": day out of range",
        ),
        (
            "15:04",
            "25:00",
            "parsing time \"25:00\": hour out of range",
        ),
        (
            "-0700",
            "+2500",
            "parsing time \"+2500\": time zone offset hour out of range",
        ),
        (
            "2006 002",
            "2023 366",
            "parsing time \"2023 366\": day-of-year out of range",
        ),
        (
            "2006-01 002",
            "2023-03 001",
            "parsing time \"2023-03 001\": day-of-year does not match month",
        ),
        (
            "2006-01-02",
            "2024-05-06x",
            "parsing time \"2024-05-06x\": extra text: \"x\"",
        ),
    ] {
        assert_eq!(read(layout, text), reason);
    }
}

#[test]
fn every_part_is_written() {
    let zone = Zone::Utc;
    let time = Time::parse("2006-01-02 15:04:05.000", "2024-05-06 13:02:03.040", &zone).unwrap();
    for (layout, expected) in [
        (
            "Monday Mon January Jan 1 01 2 _2 02",
            "Monday Mon May May 5 05 6  6 06",
        ),
        ("15 3 03 4 04 5 05 PM pm", "13 1 01 2 02 3 03 PM pm"),
        ("2006 06 002 __2 _2006", "2024 24 127 127 _2024"),
        (
            "Z07:00 -0700 -07 MST .000 .999 ,00",
            "Z +0000 +00 UTC .040 .04 ,04",
        ),
        ("Month Janet", "Month Janet"),
    ] {
        assert_eq!(time.format(layout), expected, "{layout}");
    }
}

#[test]
fn a_named_zone_shows_its_clock_its_name_and_its_offset() {
    for (layout, expected) in [
        ("2006-01-02 15:04:05 MST", "2023-11-14 23:13:20 CET"),
        ("2006-01-02T15:04:05Z07:00", "2023-11-14T23:13:20+01:00"),
        ("Z07 Z070000 -07:00:00", "+01 +010000 +01:00:00"),
    ] {
        assert_eq!(sample().format(layout), expected, "{layout}");
    }
    let tehran = sample().in_zone(Zone::load("Asia/Tehran").unwrap());
    assert_eq!(tehran.format("MST"), "+0330");
    assert_eq!(tehran.zone().to_string(), "Asia/Tehran");
}

#[test]
fn clocks_change_in_distant_years_too() {
    let read = read_in("Europe/Berlin", "2006-01-02", "2150-07-01");
    assert_eq!(read, "2150-07-01 00:00:00 +0200 CEST");
}

#[test]
fn an_unknown_zone_is_an_error() {
    for name in ["Mars/Olympus", "../etc/passwd", "europe/berlin"] {
        let error = Zone::load(name).unwrap_err();
        assert_eq!(error.to_string(), format!("unknown time zone {name}"));
    }
}

#[test]
fn a_fraction_has_at_most_nanoseconds() {
    let time = sample();
    assert_eq!(time.format(".00000000000"), ".000000000");
    assert_eq!(time.format("05.99999999999"), "20");
}

#[test]
fn json_has_no_trailing_zeros_in_the_fraction() {
    let time = sample().add(120_000_000).unwrap();
    assert_eq!(time.rfc3339(), "2023-11-14T23:13:20.12+01:00");
}

#[test]
fn clocks_that_change_are_read_as_go_reads_them() {
    let berlin = |text| read_in("Europe/Berlin", "2006-01-02 15:04", text);
    // 02:30 does not exist on this day.
    assert_eq!(berlin("2024-03-31 02:30"), "2024-03-31 03:30:00 +0200 CEST");
    // This time exists twice.
    assert_eq!(berlin("2024-10-27 02:30"), "2024-10-27 02:30:00 +0100 CET");
    assert_eq!(berlin("2024-10-27 03:30"), "2024-10-27 03:30:00 +0100 CET");
}

#[test]
fn an_abbreviation_of_the_given_zone_has_its_offset() {
    let berlin = |text| read_in("Europe/Berlin", "2006-01-02 15:04 MST", text);
    assert_eq!(
        berlin("2024-05-06 12:00 CEST"),
        "2024-05-06 12:00:00 +0200 CEST"
    );
    assert_eq!(
        berlin("2024-01-06 12:00 CEST"),
        "2024-01-06 11:00:00 +0100 CET"
    );
}

#[test]
fn an_offset_that_the_wanted_zone_has_then_is_that_zone() {
    let berlin = |text| read_in("Europe/Berlin", "2006-01-02 15:04 -0700", text);
    assert_eq!(
        berlin("2024-05-06 12:00 +0200"),
        "2024-05-06 12:00:00 +0200 CEST"
    );
    assert_eq!(
        berlin("2024-01-06 12:00 +0200"),
        "2024-01-06 12:00:00 +0200 +0200"
    );
}

#[test]
fn other_abbreviations_are_names_without_an_offset() {
    let utc = |text| read("2006-01-02 15:04 MST", text);
    assert_eq!(utc("2024-05-06 12:00 PST"), "2024-05-06 12:00:00 +0000 PST");
    assert_eq!(
        utc("2024-05-06 12:00 WITA"),
        "2024-05-06 12:00:00 +0000 WITA"
    );
    assert_eq!(
        utc("2010-02-05 05:00 GMT-8"),
        "2010-02-04 21:00:00 -0800 GMT-8"
    );
    assert!(utc("2024-05-06 12:00 ABCD").contains("cannot parse"));
    assert!(utc("2024-05-06 12:00 AB").contains("cannot parse"));
}

#[test]
fn adding_months_overflows_the_end_of_a_short_month() {
    let zone = Zone::load("Europe/Berlin").unwrap();
    let time = Time::parse("2006-01-02", "2024-01-31", &zone).unwrap();
    let moved = time.add_date(0, 1, 0).unwrap();
    assert_eq!(moved.format("2006-01-02 MST"), "2024-03-02 CET");
    let moved = time.add_date(-1, 13, 0).unwrap();
    assert_eq!(moved.format("2006-01-02"), "2024-03-02");
    assert_eq!(time.add_date(i64::MAX, 0, 0), Err(TimeError::OutOfRange));
}

#[test]
fn now_uses_the_callers_clock() {
    let instant = sample().utc;
    let now: Now = std::sync::Arc::new(move || instant);
    assert_eq!(Time::now(Some(&now)).number("Unix"), Some(1_700_000_000));
}

proptest::proptest! {
    #[test]
    fn no_layout_and_no_text_panics(layout in "[ 0-9_.,:ZJanMoSTPp+é-]{0,24}", text in "\\PC{0,24}") {
        for zone in ["UTC", "Asia/Tehran"].map(|name| Zone::load(name).unwrap()) {
            let _ = Time::parse(&layout, &text, &zone);
            let written = sample().in_zone(zone.clone()).format(&layout);
            proptest::prop_assert!(written.len() <= layout.len() * MAX_FORMAT_GROWTH);
            let _ = Time::parse(&layout, &written, &zone);
        }
    }
}
