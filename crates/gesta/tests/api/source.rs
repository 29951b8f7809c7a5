//! The source of the crates of this project, and where a name is defined.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use syn::{Item, UseTree, Visibility};

/// A module: a crate, with the names of modules that lead from its root.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Module {
    pub(crate) of_crate: String,
    pub(crate) path: Vec<String>,
}

/// A name that a `use` brings: where from, and as what.
pub(crate) struct Used {
    pub(crate) path: Vec<String>,
    /// `None` for a glob.
    pub(crate) name: Option<String>,
    pub(crate) is_public: bool,
    pub(crate) cfg: Vec<syn::Attribute>,
}

/// The parsed files of the project's crates.
pub(crate) struct Source {
    root: PathBuf,
    modules: HashMap<Module, Option<Rc<Vec<Item>>>>,
}

impl Source {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            modules: HashMap::new(),
        }
    }

    /// Returns the items of a module; `None` if there is no such module.
    pub(crate) fn items(&mut self, module: &Module) -> Option<Rc<Vec<Item>>> {
        if let Some(known) = self.modules.get(module) {
            return known.clone();
        }
        let found = self.read(module).map(Rc::new);
        self.modules.insert(module.clone(), found.clone());
        found
    }

    fn read(&mut self, module: &Module) -> Option<Vec<Item>> {
        let name = module.of_crate.strip_prefix("gesta_").unwrap_or("gesta");
        let source = self.root.join("crates").join(name).join("src");
        let file = match module.path.split_last() {
            None => source.join("lib.rs"),
            Some((last, before)) => {
                let parent = Module {
                    path: before.to_vec(),
                    ..module.clone()
                };
                for item in self.items(&parent)?.iter() {
                    if let Item::Mod(inner) = item
                        && inner.ident == last
                        && let Some((_, items)) = &inner.content
                    {
                        return Some(items.clone());
                    }
                }
                let folder: PathBuf = module.path.iter().collect();
                source.join(folder).with_extension("rs")
            }
        };
        let text = std::fs::read_to_string(file).ok()?;
        let parsed = syn::parse_file(&text).expect("valid source");
        Some(parsed.items)
    }

    /// Returns all modules of a crate whose source is read from files, the root first.
    pub(crate) fn modules_of(&mut self, of_crate: &str) -> Vec<Module> {
        let mut found = vec![Module {
            of_crate: of_crate.to_owned(),
            path: Vec::new(),
        }];
        let mut next = 0;
        while let Some(module) = found.get(next).cloned() {
            next += 1;
            let Some(items) = self.items(&module) else {
                continue;
            };
            for item in items.iter() {
                if let Item::Mod(inner) = item
                    && inner.ident != "tests"
                {
                    let mut module = module.clone();
                    module.path.push(inner.ident.to_string());
                    found.push(module);
                }
            }
        }
        found
    }

    /// Returns where a name that is used in a module is defined; `None` if it is not of this project, or made by a
    /// macro.
    pub(crate) fn definition(&mut self, module: &Module, name: &str) -> Option<(Module, Item)> {
        self.find(module, name, 0)
    }

    fn find(&mut self, module: &Module, name: &str, depth: usize) -> Option<(Module, Item)> {
        let items = self.items(module)?;
        if let Some(item) = items
            .iter()
            .find(|item| named(item).is_some_and(|own| own == name))
        {
            return Some((module.clone(), item.clone()));
        }
        if depth > 10 {
            return None;
        }
        for used in items.iter().flat_map(uses) {
            let (from, original) = match &used.name {
                Some(own) if own == name => {
                    let (last, from) = used.path.split_last()?;
                    (from, last.as_str())
                }
                Some(_) => continue,
                None => (used.path.as_slice(), name),
            };
            if let Some(from) = self.module_at(module, from)
                && let Some(found) = self.find(&from, original, depth + 1)
            {
                return Some(found);
            }
        }
        None
    }

    /// Returns the module that a path names in another module.
    pub(crate) fn module_at(&mut self, at: &Module, path: &[String]) -> Option<Module> {
        let mut module = at.clone();
        for (number, part) in path.iter().enumerate() {
            match part.as_str() {
                "crate" => module.path.clear(),
                "self" => {}
                "super" => drop(module.path.pop()),
                part if number == 0 && part.starts_with("gesta_") => {
                    module = Module {
                        of_crate: part.to_owned(),
                        path: Vec::new(),
                    };
                }
                part => module.path.push(part.to_owned()),
            }
        }
        self.items(&module).is_some().then_some(module)
    }
}

/// Returns the name that an item defines.
pub(crate) fn named(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Mod(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// Returns what an item brings by `use`.
pub(crate) fn uses(item: &Item) -> Vec<Used> {
    let Item::Use(item) = item else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut left = vec![(Vec::new(), &item.tree)];
    while let Some((path, tree)) = left.pop() {
        let with = |ident: &syn::Ident| {
            let mut path: Vec<String> = path.clone();
            if ident != "self" {
                path.push(ident.to_string());
            }
            path
        };
        let (path, name) = match tree {
            UseTree::Path(inner) => {
                let mut path = path.clone();
                path.push(inner.ident.to_string());
                left.push((path, &inner.tree));
                continue;
            }
            UseTree::Group(group) => {
                // The last one is taken first.
                left.extend(group.items.iter().rev().map(|tree| (path.clone(), tree)));
                continue;
            }
            UseTree::Name(name) => {
                let path = with(&name.ident);
                let name = path.last().cloned();
                (path, name)
            }
            UseTree::Rename(rename) => (with(&rename.ident), Some(rename.rename.to_string())),
            UseTree::Glob(_) => (path.clone(), None),
        };
        found.push(Used {
            path,
            name,
            is_public: matches!(item.vis, Visibility::Public(_)),
            cfg: cfg(&item.attrs),
        });
    }
    found
}

/// Returns the conditions under which something is compiled.
pub(crate) fn cfg(attributes: &[syn::Attribute]) -> Vec<syn::Attribute> {
    let conditions = attributes.iter().filter(|one| one.path().is_ident("cfg"));
    conditions.cloned().collect()
}
