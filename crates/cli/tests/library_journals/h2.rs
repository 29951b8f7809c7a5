//! A journal of Pekko in a file of H2, which is brought into PostgreSQL by the guide and imported from there.

use crate::comparison::Import;
use crate::guide::{blocks, shell};
use crate::support::registry::{is_deep, java};
use crate::{database, imported_from_persistence, programs, said, told_by_persistence};

/// Goal: every event that Pekko reads in the file is imported, with tags, times and what was deleted. A copy that is
/// made again, when there is more, lets the import go on.
#[test]
fn pekko_persistence_jdbc_on_h2() {
    let program = programs().join("pekko");
    let sources = ["H2.java", "Jdbc.java", "Journal.java"].map(|name| program.join(name));
    if is_deep("Pekko Persistence JDBC on H2")
        && let Some(classpath) = java("pekko-h2", &program, &sources)
        && let Some(url) = database()
    {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("journal");
        let told = told_by_persistence(&classpath, "H2", file.to_str().unwrap());

        let is_h2 = |path: &&str| path.contains("/h2-");
        let library = classpath.split(':').find(is_h2).expect("the library");
        std::os::unix::fs::symlink(library, home.path().join("h2.jar")).unwrap();
        let [.., from_h2, to_postgres] = blocks();
        let copy = || {
            for block in [&from_h2, &to_postgres] {
                let mut shell = shell(home.path(), &[], block);
                shell
                    .env("H2", format!("jdbc:h2:file:{}", file.display()))
                    .env("JOURNAL", &url);
                said(&mut shell);
            }
        };
        copy();
        // Snapshots are not copied.
        let import = || Import {
            snapshots: None,
            ..imported_from_persistence("pekko-persistence-jdbc", &url, 0)
        };
        import().brings(&told);
        let later = "DELETE FROM event_journal WHERE ordering >
             (SELECT percentile_disc(0.6) WITHIN GROUP (ORDER BY ordering) FROM event_journal)";
        let psql = format!("psql \"$JOURNAL\" -c '{later}'");
        said(shell(home.path(), &[], &psql).env("JOURNAL", &url));
        import().goes_on(&told, copy);
    }
}
