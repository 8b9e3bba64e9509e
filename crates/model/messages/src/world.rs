//! Worlds: groups of ranks that share an `MPI_COMM_WORLD`. A job begins with one; ranks that call `MPI_Comm_spawn` add others. The ranks of a
//! new world have the job's next numbers, so that a rank's number is never another one's, and the names of endpoints stay what they are.

use crate::job::{FurtherProgram, Program, Rank};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A command of a spawned world: its ranks run it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpawnedCommand {
    /// How many ranks run it, at least 1.
    pub ranks: u32,
    /// Command and arguments.
    pub argv: Vec<String>,
    /// Working directory; `None`: that of the program of the rank that asked.
    pub directory: Option<PathBuf>,
    /// Directories in which the command is looked for first, separated by colons.
    pub path: Option<String>,
}

/// A world that a rank of the job has had started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct World {
    /// The job's number of its rank 0.
    pub first: Rank,
    /// The rank that asked for it; its ranks have the same environment.
    pub parent: Rank,
    /// What its ranks run, by ascending rank.
    pub commands: Vec<SpawnedCommand>,
}

impl World {
    /// Number of its ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.commands.iter().map(|command| command.ranks).fold(0, u32::saturating_add)
    }

    /// The job's numbers of its ranks.
    #[must_use]
    pub fn ranks(&self) -> std::ops::Range<Rank> {
        self.first..self.first.saturating_add(self.size())
    }

    /// The first rank of each of its commands but the first, as numbers in its own world.
    #[must_use]
    pub fn boundaries(&self) -> Vec<Rank> {
        let ends = self.commands.iter().scan(0, |end, command| {
            *end += command.ranks;
            Some(*end)
        });
        ends.take(self.commands.len().saturating_sub(1)).collect()
    }

    /// All its commands with their arguments, and a colon between two.
    #[must_use]
    pub fn command(&self) -> String {
        self.commands.iter().map(|command| command.argv.join(" ")).collect::<Vec<_>>().join(" : ")
    }
}

impl Program {
    /// This and what the ranks of a spawned world run. The worlds before it are in it already.
    pub fn add_world(&mut self, world: &World) {
        let parent = self.of(world.parent);
        let (env, cwd) = (parent.env.to_vec(), parent.cwd.to_owned());
        let mut first = world.first;
        for command in &world.commands {
            let mut env = env.clone();
            if let Some(path) = &command.path {
                let rest = env.iter().position(|(name, _)| name == "PATH").map(|at| env.remove(at).1);
                env.push(("PATH".to_owned(), rest.map_or_else(|| path.clone(), |rest| format!("{path}:{rest}"))));
            }
            let cwd = command.directory.as_ref().map_or_else(|| cwd.clone(), |directory| cwd.join(directory));
            self.further.push(FurtherProgram { first, argv: command.argv.clone(), env, cwd });
            first += command.ranks;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(ranks: u32, name: &str, directory: Option<&str>, path: Option<&str>) -> SpawnedCommand {
        SpawnedCommand { ranks, argv: vec![name.into()], directory: directory.map(Into::into), path: path.map(Into::into) }
    }

    #[test]
    fn ranks_of_a_world_run_its_commands_where_their_parent_runs() {
        let env = vec![("PATH".to_owned(), "/bin".to_owned()), ("A".to_owned(), "1".to_owned())];
        let mut program = Program { argv: vec!["a".into()], env, cwd: "/data".into(), umask: None, further: Vec::new() };
        let commands = vec![command(2, "b", None, Some("/opt/bin")), command(1, "c", Some("sub"), None)];
        let world = World { first: 3, parent: 1, commands };
        assert_eq!((world.size(), world.ranks(), world.boundaries(), world.command()), (3, 3..6, vec![2], "b : c".to_owned()));
        program.add_world(&world);
        assert_eq!(
            (program.of(2).argv, program.of(4).argv, program.of(5).argv),
            (&["a".to_owned()][..], &["b".to_owned()][..], &["c".to_owned()][..])
        );
        assert_eq!(program.of(3).env.last().map(|(_, value)| value.as_str()), Some("/opt/bin:/bin"));
        assert_eq!((program.of(5).cwd, program.of(5).env), (std::path::Path::new("/data/sub"), program.of(0).env));
        let grandchild = World { first: 6, parent: 5, commands: vec![command(1, "d", None, None)] };
        program.add_world(&grandchild);
        assert_eq!(program.of(6).cwd, std::path::Path::new("/data/sub"));
    }
}
