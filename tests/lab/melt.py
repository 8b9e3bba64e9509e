"""LAMMPS melting a block of atoms for as long as a test disturbs it: on a fast machine as on a slow one.

It goes on after its LAST step until there is a file `go` (`Job.let_go`). How far it got then differs from run to run; what it
says of each step does not.
"""

import os
import re

from cluster import find_lammps, replays

LAST, INTERVAL = 400, 50
# A block of 4 * size³ atoms, warm enough to melt.
BLOCK = """units lj
lattice fcc 0.8442
region box block 0 {size} 0 {size} 0 {size}
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
"""
INPUT = BLOCK + f"""thermo {INTERVAL}
thermo_style custom step temp epair etotal press
thermo_modify flush yes format float %20.15g
variable o equal "is_file(go) && step >= {LAST}"
run 1000000 every {INTERVAL} "if '$o' then quit"
"""
QUIET = BLOCK + """thermo 0
run 1000000000
"""


def argv(directory, size=12, script=INPUT):
    """The command that melts 4 * size³ atoms; its input is put into the directory."""
    path = os.path.join(directory, "in.melt")
    with open(path, "w", encoding="utf-8") as file:
        file.write(script.format(size=size))
    return [find_lammps(), "-in", path, "-log", "none", "-nocite"]


def quiet_argv(directory, size=12):
    """The same for a melt that prints nothing after its beginning, and does not end."""
    return argv(directory, size, QUIET)


def table(text):
    """What it said: step and values, of the first and of the last step of each interval."""
    return [line.split() for line in text.splitlines() if re.match(r"^ +[0-9]+( +[-0-9.e+]+){4} *$", line)]


def steps(text):
    """How far it got."""
    found = table(text)
    return int(found[-1][0]) if found else -1


def place(at):
    """The step of the line at a place in the table."""
    return INTERVAL * ((at + 1) // 2)


def without_repeats(lines, allowed):
    """The table without what a restart has printed again: at most so often as it said so. A replay differs in how long an interval
    took, and is printed from there: from the first line of the next interval."""
    kept = []
    for line in lines:
        first = 2 * int(line[0]) // INTERVAL
        if allowed and int(line[0]) != place(len(kept)) and first < len(kept) and kept[first] == line:
            allowed -= 1
            del kept[first:]
        kept.append(line)
    return kept


def compare(test, undisturbed, disturbed, said=""):
    """Each interval is there once and in its place, and as far as both runs went they are equal to the last digit. `said`: what
    `mend` said of the disturbed run."""
    expected, found = table(undisturbed), without_repeats(table(disturbed), replays(said))
    # A run that was killed far behind its checkpoint has said more than the one that went on from there and found the file `go`:
    # what is in between may end within an interval.
    if len(found) % 2 and int(found[-1][0]) > LAST:
        found.pop()
    for lines in (expected, found):
        intervals = max(LAST // INTERVAL, len(lines) // 2)
        test.assertEqual([int(step) for step, *_ in lines], [place(at) for at in range(2 * intervals)])
    both = min(len(expected), len(found))
    test.assertEqual(found[:both], expected[:both])
