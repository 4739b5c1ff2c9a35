use super::*;

fn row(window: u32, path: &str, runs: &[f64], reference: &[f64]) -> Row {
    Row {
        id: format!("lane/{window}"),
        params: vec![("window", json!(window)), ("path", json!(path))],
        unit: "frames_per_s",
        runs: runs.to_vec(),
        reference: Some(Reference {
            name: "raw".to_owned(),
            runs: reference.to_vec(),
        }),
    }
}

fn report(rows: Vec<Row>) -> Report {
    let mut report = Report::new("window", &Arguments::default());
    report.rows = rows;
    report
}

#[test]
fn a_row_has_the_middle_of_its_runs_and_the_ratio_of_both_middles() {
    let row = row(16, "direct", &[30.0, 10.0, 20.0], &[50.0, 30.0]);
    assert_eq!(row.median(), Some(20.0));
    assert_eq!(row.ratio(), Some(0.5));
    assert_eq!(median(&[]), None);
}

#[test]
fn the_json_has_what_the_contract_names() {
    let json = report(vec![row(16, "direct", &[1.0], &[2.0])]).to_json();
    assert_eq!(json["schema"], SCHEMA);
    assert_eq!(json["bench"], "window");
    assert!(json["machine"]["cores"].as_u64().unwrap() > 0);
    assert!(json["commit"].is_string());
    let row = &json["rows"][0];
    assert_eq!(row["params"]["window"], 16);
    assert_eq!(row["unit"], "frames_per_s");
    assert_eq!(row["runs"], json!([1.0]));
    assert_eq!(row["median"], 1.0);
    assert_eq!(row["reference"]["name"], "raw");
    assert_eq!(row["reference"]["median"], 2.0);
    assert_eq!(row["ratio"], 0.5);
}

#[test]
fn tables_hold_every_run_and_a_pivot_each_pair_of_parameters() {
    let rows = vec![
        row(8, "direct", &[1000.0, 3000.0], &[4000.0]),
        row(16, "relay", &[5.0], &[2.5]),
    ];
    let report = report(rows);
    let tables = report.tables();
    assert!(tables.contains("1,000 · 3,000"), "{tables}");
    let pivot = report.pivot("frames_per_s", "window", "path", |_| true);
    assert_eq!(
        pivot,
        "| window \\ path | direct | relay |\n|---|---|---|\n| 8 | 2,000 (0.50) |  |\n| 16 |  | \
         5.00 (2.00) |\n"
    );
}

#[test]
fn nothing_found_is_a_failure() {
    let arguments = Arguments::default();
    assert!(report(Vec::new()).write(&arguments, "", "", &[]).is_err());
    let empty = report(vec![row(8, "direct", &[], &[])]);
    assert!(empty.write(&arguments, "", "", &[]).is_err());
}

#[test]
fn figures_keep_the_digits_they_can_bear() {
    let shown = [1_234_567.8, 999.6, 42.34, 1.234, 0.1234, -1234.0].map(figure);
    assert_eq!(
        shown,
        ["1,234,568", "1,000", "42.3", "1.23", "0.123", "-1,234"]
    );
}

#[test]
fn what_is_written_lies_side_by_side() {
    let folder = tempfile::TempDir::new().unwrap();
    let arguments = Arguments {
        json: Some(folder.path().join("deep/window.json")),
        ..Arguments::default()
    };
    let series = plot::Series {
        name: "ours".to_owned(),
        points: vec![(1.0, 10.0), (2.0, 20.0)],
        style: plot::Style::Solid(0),
    };
    let panel = Panel {
        title: "direct".to_owned(),
        x: "window".to_owned(),
        y: "frames/s".to_owned(),
        series: vec![series],
    };
    let report = report(vec![row(16, "direct", &[1.0], &[2.0])]);
    let json = report
        .write(&arguments, "A summary.", "Windows", &[panel])
        .unwrap();
    let read = |extension| std::fs::read_to_string(json.with_extension(extension)).unwrap();
    let parsed: Value = serde_json::from_str(&read("json")).unwrap();
    assert_eq!(parsed["schema"], SCHEMA);
    assert!(read("md").contains("A summary."));
    assert!(read("svg").contains("<svg"));
}
