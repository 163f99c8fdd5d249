//! Owners and modes of existing files.

use super::*;

#[test]
fn owner_first_and_mode_after_so_that_set_id_bits_stay() {
    let dir = TestDir::new();
    let file = dir.file("file", "");
    set_attributes(&file, &EVERYTHING).unwrap();
    assert_eq!(attributes_of(&file), (1234, 2345, 0o4750));
}

#[test]
fn only_those_that_are_given() {
    let dir = TestDir::new();
    let file = dir.file("file", "");
    set_attributes(&file, &EVERYTHING).unwrap();
    let group = Attributes {
        gid: Some(7),
        ..Attributes::default()
    };
    set_attributes(&file, &group).unwrap();
    // The kernel clears the set-id bit when the group changes and no mode is set.
    assert_eq!(attributes_of(&file), (1234, 7, 0o750));
}

#[test]
fn on_a_pipe_without_waiting_for_its_other_end() {
    let dir = TestDir::new();
    let pipe = dir.fifo("pipe");
    set_attributes(&pipe, &EVERYTHING).unwrap();
    assert_eq!(attributes_of(&pipe), (1234, 2345, 0o4750));
    assert!(
        std::fs::symlink_metadata(&pipe)
            .unwrap()
            .file_type()
            .is_fifo()
    );
}

#[test]
fn never_through_a_link() {
    let dir = TestDir::new();
    let victim = dir.file("victim", "");
    let before = attributes_of(&victim);
    let link = dir.link("link", "victim");
    let error = set_attributes(&link, &EVERYTHING).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{} is a symlink; refusing to set attributes through it",
            link.display()
        )
    );
    assert_eq!(attributes_of(&victim), before);
}

#[test]
fn of_a_missing_file_are_an_error() {
    let dir = TestDir::new();
    let error = set_attributes(&dir.at("missing"), &EVERYTHING).unwrap_err();
    assert!(error.is_not_found());
}
