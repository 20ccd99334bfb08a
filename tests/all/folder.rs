use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use cluster::{Folder, Problem, SourceEvent, read_folder, watch_folder};
use kit::fake_api::DEADLINE;
use policy::{Change, Kind, Object};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::timeout;

fn pod(name: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{namespace: shop, name: {name}}}\n")
}

fn namespace(name: &str, team: &str) -> String {
    format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {{team: {team}}}}}\n")
}

fn write(folder: &TempDir, file: &str, text: &str) {
    let path = folder.path().join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn folder_of(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    files.iter().for_each(|(file, text)| write(&folder, file, text));
    folder
}

fn names(folder: &Folder) -> Vec<String> {
    let line = |f: &cluster::LocatedObject| format!("{} {} {}", f.object.kind(), f.object.name(), f.origin);
    folder.objects.iter().map(line).collect()
}

fn check(files: &[(&str, &str)], objects: &[&str], problems: &[&str]) {
    let folder = read_folder(folder_of(files).path()).unwrap();
    assert_eq!(names(&folder), objects);
    assert_eq!(folder.problems.iter().map(Problem::to_string).collect::<Vec<_>>(), problems);
}

#[test]
fn objects_documents_and_lists_are_read() {
    let list = "apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: c\n    namespace: shop\n\
                - apiVersion: networking.k8s.io/v1\n  kind: NetworkPolicy\n  metadata: {name: p, namespace: shop}\n  \
                spec: {podSelector: {}}\nkind: List\nmetadata:\n  resourceVersion: \"\"\n";
    let json =
        r#"{"kind": "PodList", "apiVersion": "v1", "items": [{"metadata": {"name": "d", "namespace": "shop"}}]}"#;
    check(
        &[
            ("a.yaml", &pod("a")),
            ("b.yml", &format!("{}---\n{}", namespace("shop", "x"), pod("b"))),
            ("deep/er/c.yaml", list),
            ("d.json", json),
            ("ignored.txt", "kind: ["),
            (".hidden.yaml", "kind: ["),
        ],
        &[
            "Namespace shop b.yml:1",
            "Pod shop/a a.yaml:1",
            "Pod shop/b b.yml:5",
            "Pod shop/c deep/er/c.yaml:3",
            "Pod shop/d d.json:1",
            "NetworkPolicy shop/p deep/er/c.yaml:8",
        ],
        &[],
    );
}

#[test]
fn kinds_without_a_meaning_here_are_counted() {
    let folder = folder_of(&[("a.yaml", "kind: Service\n---\nkind: ConfigMap\n")]);
    assert_eq!(read_folder::<Object>(folder.path()).unwrap(), Folder { objects: vec![], problems: vec![], ignored: 2 });
}

#[test]
fn undefined_namespace_is_implied_with_its_name_label() {
    let folder = folder_of(&[("a.yaml", &pod("a"))]);
    let folder = read_folder(folder.path()).unwrap();
    assert_eq!(names(&folder), ["Namespace shop a.yaml:1", "Pod shop/a a.yaml:1"]);
    let Object::Namespace(shop) = &folder.objects[0].object else { panic!("not a namespace") };
    let labels: Vec<String> = shop.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(labels, ["kubernetes.io/metadata.name=shop"]);
}

#[test]
fn duplicate_object_is_a_problem_naming_both_definitions() {
    check(
        &[("a.yaml", &namespace("shop", "first")), ("b.yaml", &format!("---\n{}", namespace("shop", "second")))],
        &["Namespace shop a.yaml:1"],
        &["b.yaml:2: duplicate Namespace shop: already defined at a.yaml:1, which is used; remove one of the two"],
    );
}

#[test]
fn invalid_file_is_reported_and_others_are_read() {
    check(
        &[("a.yaml", &pod("a")), ("b.yaml", "kind: Pod\nmetadata: a: b\n")],
        &["Namespace shop a.yaml:1", "Pod shop/a a.yaml:1"],
        &["b.yaml:2: column 12: mapping values are not allowed in this context; the file is ignored until it is \
             corrected"],
    );
}

#[test]
fn a_single_file_is_a_folder_of_one() {
    let folder = folder_of(&[("a.yaml", &namespace("a", "x")), ("b.yaml", &namespace("b", "x"))]);
    let file = read_folder(&folder.path().join("a.yaml")).unwrap();
    assert_eq!(names(&file), ["Namespace a a.yaml:1"]);
}

#[test]
fn reading_a_missing_folder_fails() {
    let error = read_folder::<Object>(Path::new("/nowhere/manifests")).unwrap_err().to_string();
    assert_eq!(error, "manifest folder /nowhere/manifests: No such file or directory (os error 2)");
}

#[test]
fn circular_links_end_and_broken_links_are_problems() {
    let folder = folder_of(&[("sub/a.yaml", &namespace("a", "x"))]);
    symlink(folder.path(), folder.path().join("sub/loop")).unwrap();
    symlink("nothing", folder.path().join("sub/broken.yaml")).unwrap();
    let folder = read_folder(folder.path()).unwrap();
    assert_eq!(names(&folder), ["Namespace a sub/a.yaml:1"]);
    assert_eq!(folder.problems.len(), 1, "{:?}", folder.problems);
    assert_eq!(folder.problems[0].origin, "sub/broken.yaml");
}

#[test]
fn mounted_config_map_is_read_once() {
    let folder =
        folder_of(&[("..2026_01/web.yaml", &namespace("web", "x")), ("..2026_01/sub/db.yaml", &namespace("db", "x"))]);
    symlink("..2026_01", folder.path().join("..data")).unwrap();
    symlink("..data/web.yaml", folder.path().join("web.yaml")).unwrap();
    symlink("..data/sub", folder.path().join("sub")).unwrap();
    let folder = read_folder(folder.path()).unwrap();
    assert_eq!(names(&folder), ["Namespace db sub/db.yaml:1", "Namespace web web.yaml:1"]);
    assert!(folder.problems.is_empty());
}

/// Events received from a followed folder.
struct FolderReader {
    events: mpsc::Receiver<SourceEvent>,
    objects: BTreeMap<Kind, Vec<String>>,
    problems: Vec<Problem>,
    /// The kinds of each change event.
    changes: Vec<Vec<Kind>>,
}

impl FolderReader {
    fn of(folder: &TempDir) -> FolderReader {
        FolderReader::of_path(folder.path())
    }

    fn of_path(path: &Path) -> FolderReader {
        let (sender, events) = mpsc::channel(8);
        let path = path.to_owned();
        tokio::spawn(async move { watch_folder::<Object, _>(&path, sender).await.unwrap() });
        FolderReader { events, objects: BTreeMap::new(), problems: vec![], changes: vec![] }
    }

    async fn until(&mut self, what: &str, condition: impl Fn(&FolderReader) -> bool) {
        let began = Instant::now();
        while !condition(self) {
            let left = DEADLINE.saturating_sub(began.elapsed());
            let Ok(event) = timeout(left, self.events.recv()).await else {
                panic!("{what}: not within {DEADLINE:?}; objects {:?}, problems {:?}", self.objects, self.problems);
            };
            match event.expect("the folder is followed") {
                SourceEvent::Problems(problems) => self.problems = problems,
                SourceEvent::Unserved(kinds) => panic!("a folder has all kinds: {kinds:?}"),
                SourceEvent::Changes(changes) => {
                    let mut kinds = vec![];
                    for change in changes.into_iter().map(|timed| timed.change) {
                        let Change::Replace(kind, objects) = change else { panic!("{change:?}") };
                        kinds.push(kind);
                        self.objects.insert(kind, objects.iter().map(|o| o.name().to_string()).collect());
                    }
                    self.changes.push(kinds);
                }
            }
        }
    }

    async fn until_namespaces(&mut self, names: &[&str]) {
        self.until(&format!("{names:?}"), |k| k.objects.get(&Kind::Namespace).is_some_and(|n| n == names)).await;
    }

    async fn until_problem(&mut self, text: &str) {
        let has = |known: &FolderReader| known.problems.iter().any(|problem| problem.to_string().contains(text));
        self.until(&format!("a problem with '{text}'"), has).await;
    }
}

#[tokio::test]
async fn later_events_have_only_changed_kinds() {
    let folder = folder_of(&[("a.yaml", &namespace("a", "x"))]);
    let mut known = FolderReader::of(&folder);
    known.until_namespaces(&["a"]).await;
    write(&folder, "b.yaml", &namespace("b", "x"));
    known.until_namespaces(&["a", "b"]).await;
    write(&folder, "sub/c.yaml", &namespace("c", "x"));
    known.until_namespaces(&["a", "b", "c"]).await;
    assert_eq!(known.changes, [Kind::ALL.to_vec(), vec![Kind::Namespace], vec![Kind::Namespace]]);
    assert!(known.problems.is_empty(), "{:?}", known.problems);
}

#[tokio::test]
async fn an_empty_folder_is_known_to_be_empty() {
    let folder = TempDir::new().unwrap();
    let mut known = FolderReader::of(&folder);
    known.until("every kind", |known| known.objects.len() == Kind::ALL.len()).await;
}

#[tokio::test]
async fn file_in_new_subfolder_is_read() {
    let folder = TempDir::new().unwrap();
    let mut known = FolderReader::of(&folder);
    known.until_namespaces(&[]).await;
    fs::create_dir(folder.path().join("sub")).unwrap();
    write(&folder, "marker.yaml", &namespace("marker", "x"));
    known.until_namespaces(&["marker"]).await;
    write(&folder, "sub/a.yaml", &namespace("a", "x"));
    known.until_namespaces(&["a", "marker"]).await;
}

#[tokio::test]
async fn invalid_file_keeps_previous_contents_and_others_update() {
    let folder = folder_of(&[("a.yaml", &namespace("a", "x")), ("b.yaml", &namespace("b", "x"))]);
    let mut known = FolderReader::of(&folder);
    known.until_namespaces(&["a", "b"]).await;
    write(&folder, "a.yaml", "kind: [\n");
    known.until_problem("a.yaml:").await;
    assert!(known.problems[0].message.ends_with("its previous contents are used until it is corrected"));
    write(&folder, "b.yaml", &namespace("c", "x"));
    known.until_namespaces(&["a", "c"]).await;
    write(&folder, "a.yaml", &namespace("d", "x"));
    known.until_namespaces(&["c", "d"]).await;
    known.until("no problem", |known| known.problems.is_empty()).await;
}

#[tokio::test]
async fn a_deleted_file_takes_its_objects_with_it() {
    let folder = folder_of(&[("a.yaml", &namespace("a", "x")), ("sub/b.yaml", &namespace("b", "x"))]);
    let mut known = FolderReader::of(&folder);
    known.until_namespaces(&["a", "b"]).await;
    fs::remove_file(folder.path().join("a.yaml")).unwrap();
    known.until_namespaces(&["b"]).await;
    fs::remove_dir_all(folder.path().join("sub")).unwrap();
    known.until_namespaces(&[]).await;
}

#[tokio::test]
async fn swapped_config_map_link_updates_contents() {
    let folder = folder_of(&[("..1/web.yaml", &namespace("one", "x"))]);
    symlink("..1", folder.path().join("..data")).unwrap();
    symlink("..data/web.yaml", folder.path().join("web.yaml")).unwrap();
    let mut known = FolderReader::of(&folder);
    known.until_namespaces(&["one"]).await;
    for (number, name) in [(2, "two"), (3, "three")] {
        write(&folder, &format!("..{number}/web.yaml"), &namespace(name, "x"));
        symlink(format!("..{number}"), folder.path().join("..data_tmp")).unwrap();
        fs::rename(folder.path().join("..data_tmp"), folder.path().join("..data")).unwrap();
        fs::remove_dir_all(folder.path().join(format!("..{}", number - 1))).unwrap();
        known.until_namespaces(&[name]).await;
    }
    assert!(known.problems.is_empty(), "{:?}", known.problems);
}

#[tokio::test]
async fn change_of_a_link_target_is_read() {
    let elsewhere = folder_of(&[("a.yaml", &namespace("a", "x"))]);
    let folder = TempDir::new().unwrap();
    symlink(elsewhere.path().join("a.yaml"), folder.path().join("link.yaml")).unwrap();
    let mut known = FolderReader::of(&folder);
    known.until_namespaces(&["a"]).await;
    write(&elsewhere, "a.yaml", &namespace("b", "x"));
    known.until_namespaces(&["b"]).await;
}

#[tokio::test]
async fn removed_folder_is_a_problem_and_contents_stay() {
    let folder = folder_of(&[("in/a.yaml", &namespace("a", "x"))]);
    let mut known = FolderReader::of_path(&folder.path().join("in"));
    known.until_namespaces(&["a"]).await;
    fs::rename(folder.path().join("in"), folder.path().join("out")).unwrap();
    known.until_problem("the previous contents of the folder are used").await;
    assert_eq!(known.objects[&Kind::Namespace], ["a"]);
}

#[tokio::test]
async fn folder_replaced_by_pipe_is_followed_again() {
    let folder = folder_of(&[("in/a.yaml", &namespace("a", "x"))]);
    let [path, aside] = ["in", "aside"].map(|name| folder.path().join(name));
    let mut known = FolderReader::of_path(&path);
    known.until_namespaces(&["a"]).await;
    fs::rename(&path, &aside).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    known.until_problem("neither a folder nor a regular file; the previous contents of the folder are used").await;
    assert_eq!(known.objects[&Kind::Namespace], ["a"]);
    // Another folder in its place, which no inotify watch refers to.
    fs::remove_file(&path).unwrap();
    write(&folder, "in/b.yaml", &namespace("b", "x"));
    known.until_namespaces(&["b"]).await;
    known.until("no problem", |known| known.problems.is_empty()).await;
}

#[tokio::test]
async fn continuously_changing_folder_is_problem_while_it_lasts() {
    let folder = folder_of(&[("a.yaml", &namespace("a", "x")), ("b.yaml", &namespace("b", "x"))]);
    let mut known = FolderReader::of(&folder);
    known.until_namespaces(&["a", "b"]).await;
    let changing = Arc::new(AtomicBool::new(true));
    let writer = std::thread::spawn({
        let (changing, path) = (changing.clone(), folder.path().join("c.yaml"));
        move || {
            // Sizes differ, because two changes within a tick of the kernel's clock may have the same time.
            for size in (1..100).cycle().take_while(|_| changing.load(Ordering::Relaxed)) {
                fs::write(&path, "#".repeat(size)).unwrap();
            }
        }
    });
    known.until_problem("the folder changes continuously").await;
    fs::remove_file(folder.path().join("a.yaml")).unwrap();
    known.until_namespaces(&["b"]).await;
    changing.store(false, Ordering::Relaxed);
    writer.join().unwrap();
    known.until("no problem", |known| known.problems.is_empty()).await;
}

#[tokio::test]
async fn watching_a_missing_folder_fails() {
    let (sender, _events) = mpsc::channel(8);
    watch_folder::<Object, SourceEvent>(Path::new("/nowhere"), sender).await.unwrap_err();
}
