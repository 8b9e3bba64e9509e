"""What is known of functions without a body: C's library and MPI.

Effects are a letter for each argument: `-` its value, `r` reads what it points to, `w` writes there, `W` writes all of what it points to (a scalar,
or `counts` elements), `b` both, `o` a handle that is made, `*` the letter before it goes on for all further arguments."""

import re

NO_RETURN = {"exit", "_exit", "_Exit", "abort", "quick_exit", "MPI_Abort", "__assert_fail", "longjmp"}
ALLOCATE = {"malloc": (0,), "calloc": (0, 1), "realloc": (1,), "aligned_alloc": (1,)}
# Return what an argument points to.
RETURNS = {"memcpy": 0, "memmove": 0, "memset": 0, "strcpy": 0, "strcat": 0, "strncpy": 0, "strncat": 0, "realloc": 0, "strchr": 0, "strstr": 0, "strrchr": 0, "fgets": 0, "mend_app_fopen": None}
PURE = set("""sin cos tan asin acos atan atan2 sinh cosh tanh exp exp2 expm1 log log2 log10 log1p pow sqrt cbrt hypot fabs floor ceil round trunc fmod fmin fmax
copysign lround llround lrint rint nearbyint remainder erf erfc tgamma lgamma fma abs labs llabs isnan isinf isfinite signbit ldexp cabs creal cimag conj cexp
sinf cosf tanf expf logf powf sqrtf fabsf floorf ceilf fminf fmaxf fmodf sinl cosl expl logl powl sqrtl fabsl isalpha isdigit isspace isupper islower toupper tolower
__builtin_fabs __builtin_sqrt __builtin_isnan __builtin_inf __builtin_nan __builtin_huge_val __builtin_huge_valf __builtin_inff __builtin_nanf __isnan __isinf __finite
__builtin_isinf_sign __builtin_isfinite __builtin_isinf __builtin_fpclassify __builtin_signbit""".split())
# The same arguments give the same, but not from one run to the next.
UNREPEATABLE = {"time", "clock", "rand", "random", "drand48", "lrand48", "getpid", "gettimeofday", "clock_gettime", "MPI_Wtime", "getenv", "gethostname", "getchar", "omp_get_wtime"}
LIBC = {
    "memcpy": "Wr-", "memmove": "wr-", "memset": "W--", "memcmp": "rr-", "strlen": "r", "strcmp": "rr", "strncmp": "rr-", "strcpy": "wr", "strncpy": "wr-", "strcat": "br",
    "strncat": "br-", "strchr": "r-", "strrchr": "r-", "strstr": "rr", "atoi": "r", "atol": "r", "atoll": "r", "atof": "r", "strtol": "rw-", "strtoul": "rw-", "strtod": "rw",
    "strtoll": "rw-", "strtoull": "rw-",
    "printf": "r*", "fprintf": "-r*", "puts": "r", "putchar": "-", "fputs": "r-", "fputc": "--", "putc": "--", "fflush": "-", "perror": "r", "sprintf": "wr*", "snprintf": "w-r*",
    "scanf": "rw*", "fscanf": "-rw*", "sscanf": "rrw*", "fgets": "w--", "fgetc": "-", "getc": "-", "feof": "-", "ferror": "-", "fread": "w---", "fwrite": "r---", "fseek": "---", "ftell": "-",
    "rewind": "-", "fopen": "rr", "fclose": "-", "setvbuf": "-w--", "setbuf": "-w", "remove": "r", "unlink": "r", "rename": "rr", "mkdir": "r-", "access": "r-",
    "time": "w", "clock": "", "rand": "", "srand": "-", "random": "", "srandom": "-", "drand48": "", "srand48": "-", "lrand48": "", "rand_r": "b", "getpid": "", "gettimeofday": "ww",
    "clock_gettime": "-w", "getenv": "r", "usleep": "-", "sleep": "-", "nanosleep": "rw", "gethostname": "w-", "getchar": "",
    "malloc": "-", "calloc": "--", "realloc": "--", "aligned_alloc": "--", "free": "-", "frexp": "-w", "modf": "-w", "sincos": "-ww", "qsort": "b--r", "bsearch": "rr--r",
    "exit": "-", "_exit": "-", "_Exit": "-", "abort": "", "__assert_fail": "rr-r", "atexit": "-", "omp_get_wtime": "", "omp_get_thread_num": "", "omp_get_max_threads": "",
    "acc_init": "-", "acc_get_num_devices": "-", "acc_set_device_type": "-", "acc_get_device_type": "", "acc_set_device_num": "--", "acc_get_device_num": "-", "acc_wait": "-", "acc_wait_all": "", "raise": "-", "kill": "--", "isatty": "-",
}
# What the Fortran front end makes of statements and intrinsics.
LIBC.update({"mend_cc output": "-*", "mend_cc record": "-*", "mend_cc argument": "-w*", "mend_cc clock": "w*", "mend_cc unknown": "b*", "mend_cc allocate": "-", "mend_cc allocate if": "-", "random_number": "w*"})
PURE |= {"mend_cc number", "mend_cc inquiry", "mend_cc intrinsic"}
# Their generator's state can't be registered.
HIDDEN_STATE = {"random_number", "rand", "random", "drand48", "lrand48", "strtok"}

# Functions that move a stream -> the argument that it is; None: standard input. Of those in WRITES the restored position tells all.
STREAMS = {"fscanf": 0, "fgetc": 0, "getc": 0, "fgets": 2, "fread": 3, "fseek": 0, "rewind": 0, "fprintf": 0, "fputs": 1, "fputc": 1, "putc": 1, "fwrite": 3, "scanf": None, "getchar": None, "mend_cc record": None}
WRITES = {"fprintf", "fputs", "fputc", "putc", "fwrite"}

# kind of call -> what it does with messages. p2p: (letters, position of the peer, of the count or None).
MPI = {
    "MPI_Init": ("bb", "setup"), "MPI_Init_thread": ("bb-W", "setup"), "MPI_Finalize": ("", "end"), "MPI_Abort": ("--", "local"),
    "MPI_Initialized": ("W", "local"), "MPI_Finalized": ("W", "local"), "MPI_Wtime": ("", "local"), "MPI_Wtick": ("", "local"), "MPI_Query_thread": ("W", "local"),
    "MPI_Comm_rank": ("-W", "rank"), "MPI_Comm_size": ("-W", "size"), "MPI_Get_processor_name": ("wW", "local"), "MPI_Get_version": ("WW", "local"),
    "MPI_Comm_set_errhandler": ("--", "local"), "MPI_Errhandler_set": ("--", "local"), "MPI_Error_string": ("-wW", "local"), "MPI_Comm_set_name": ("-r", "local"),
    "MPI_Send": ("r-----", "send", 3), "MPI_Ssend": ("r-----", "send", 3), "MPI_Bsend": ("r-----", "send", 3), "MPI_Rsend": ("r-----", "send", 3),
    "MPI_Recv": ("w-----w", "recv", 3),
    "MPI_Sendrecv": ("r----w-----w", "sendrecv", 3, 8), "MPI_Sendrecv_replace": ("b-------w", "sendrecv", 3, 5),
    "MPI_Isend": ("r-----o", "isend", 3), "MPI_Issend": ("r-----o", "isend", 3), "MPI_Ibsend": ("r-----o", "isend", 3), "MPI_Irsend": ("r-----o", "isend", 3),
    "MPI_Irecv": ("w-----o", "irecv", 3),
    "MPI_Send_init": ("r-----o", "send_init", 3), "MPI_Ssend_init": ("r-----o", "send_init", 3), "MPI_Recv_init": ("w-----o", "recv_init", 3),
    "MPI_Start": ("o", "start"), "MPI_Startall": ("-o", "startall"),
    "MPI_Wait": ("ow", "wait"), "MPI_Waitall": ("-ow", "waitall"), "MPI_Waitany": ("-oww", "some"), "MPI_Waitsome": ("-owww", "some"),
    "MPI_Test": ("oww", "some"), "MPI_Testall": ("-oww", "some"), "MPI_Testany": ("-owww", "some"), "MPI_Testsome": ("-owww", "some"),
    "MPI_Cancel": ("o", "unclear"), "MPI_Request_free": ("o", "request_free"),
    "MPI_Probe": ("---w", "local"), "MPI_Iprobe": ("---ww", "local"), "MPI_Get_count": ("r-W", "local"), "MPI_Get_elements": ("r-W", "local"),
    "MPI_Barrier": ("-", "collective"), "MPI_Bcast": ("b----", "collective"), "MPI_Reduce": ("rw-----", "collective"), "MPI_Allreduce": ("rW----", "collective"),
    "MPI_Gather": ("r--w----", "collective"), "MPI_Gatherv": ("r--wrr---", "collective"), "MPI_Scatter": ("r--w----", "collective"), "MPI_Scatterv": ("rrr-w----", "collective"),
    "MPI_Allgather": ("r--w---", "collective"), "MPI_Allgatherv": ("r--wrr--", "collective"), "MPI_Alltoall": ("r--w---", "collective"),
    "MPI_Alltoallv": ("rrr-wrr--", "collective"), "MPI_Scan": ("rw----", "collective"), "MPI_Exscan": ("rw----", "collective"),
    "MPI_Reduce_scatter": ("rwr---", "collective"), "MPI_Reduce_scatter_block": ("rw----", "collective"),
    "MPI_Ibarrier": ("-o", "icollective"), "MPI_Ibcast": ("b----o", "icollective"), "MPI_Iallreduce": ("rw----o", "icollective"), "MPI_Ireduce": ("rw-----o", "icollective"),
    "MPI_Iallgather": ("r--w---o", "icollective"), "MPI_Igather": ("r--w----o", "icollective"), "MPI_Ialltoall": ("r--w---o", "icollective"),
    "MPI_Comm_dup": ("-o", "dup"), "MPI_Comm_split": ("---o", "split"), "MPI_Comm_create": ("--o", "make"), "MPI_Comm_free": ("o", "local"), "MPI_Comm_group": ("-o", "make"),
    "MPI_Group_incl": ("--ro", "make"), "MPI_Group_excl": ("--ro", "make"), "MPI_Group_free": ("o", "local"), "MPI_Comm_split_type": ("----o", "make"),
    "MPI_Cart_create": ("--rr-o", "cart"), "MPI_Cart_coords": ("---w", "cart_coords"), "MPI_Cart_shift": ("---WW", "cart_shift"), "MPI_Cart_rank": ("-rW", "cart_rank"),
    "MPI_Cart_get": ("--www", "make"), "MPI_Dims_create": ("--b", "dims"), "MPI_Cart_sub": ("-ro", "make"),
    "MPI_Type_contiguous": ("--o", "make"), "MPI_Type_vector": ("----o", "make"), "MPI_Type_indexed": ("-rr-o", "make"), "MPI_Type_create_struct": ("-rrro", "make"),
    "MPI_Type_create_subarray": ("-rrr--o", "make"), "MPI_Type_commit": ("o", "local"), "MPI_Type_free": ("o", "local"), "MPI_Type_size": ("-W", "local"),
    "MPI_Type_create_resized": ("---o", "make"), "MPI_Type_create_hvector": ("----o", "make"), "MPI_Get_address": ("-W", "local"), "MPI_Op_create": ("--o", "make"), "MPI_Op_free": ("o", "local"),
    "MPI_Pcontrol": ("-*", "local"),
}
# Kinds of functions that start requests, or may complete them: then buffers of persistent ones are read and written.
STARTS_OR_ENDS = {"start", "startall", "wait", "waitall", "some"}
# Kinds of functions that ranks must call in step.
MESSAGES = STARTS_OR_ENDS | {"send", "recv", "sendrecv", "isend", "irecv", "collective", "icollective", "unclear"}
# Kinds of functions whose buffers have a number of elements and a datatype.
BUFFERS = {"send", "recv", "sendrecv", "isend", "irecv", "send_init", "recv_init", "collective", "icollective"}
# Results of these are the same on all ranks of the communicator: arguments that are.
SAME_EVERYWHERE = {"MPI_Bcast": (0,), "MPI_Allreduce": (1,), "MPI_Allgather": (3,), "MPI_Allgatherv": (3,), "MPI_Ibcast": (0,), "MPI_Iallreduce": (1,), "MPI_Comm_size": (1,), "MPI_Get_version": (0, 1), "MPI_Init": (0, 1), "MPI_Init_thread": (0, 1, 3), "MPI_Initialized": (0,)}
# How many elements `W` covers: position of the count, and whether it counts bytes.
COUNTS = {"memset": (2, True), "memcpy": (2, True), "MPI_Allreduce": (2, False)}


# Bytes of a buffer: which arguments are multiplied.
BYTES = {"memset": (2,), "memcpy": (2,), "memmove": (2,), "memcmp": (2,), "fread": (1, 2), "fwrite": (1, 2), "qsort": (1, 2)}
REDUCTIONS = {"MPI_Reduce", "MPI_Allreduce", "MPI_Scan", "MPI_Exscan", "MPI_Ireduce", "MPI_Iallreduce"}
# As many elements for each rank.
FOR_EACH = {"Gather": 3, "Allgather": 3, "Scatter": 0, "Alltoall": 0, "Igather": 3, "Iallgather": 3, "Ialltoall": 0}


def buffer_bytes(name, arguments, at):
    """Bytes of a buffer that an argument begins; -1: that isn't known; None: it is no buffer, but one variable or several by their types."""
    if name in BYTES:
        if name in ("memcpy", "memmove", "memcmp") and at > 1 or name not in ("memcpy", "memmove", "memcmp") and at:
            return None
        numbers = [number(arguments[one]) if one < len(arguments) else None for one in BYTES[name]]
    elif name in MPI and MPI[name][1] in BUFFERS:
        letters = MPI[name][0]
        if letter(letters, at) not in "rwWb" or at + 2 >= len(letters):
            return None
        count = count_of(name, at)
        if count is None or count + 1 >= len(arguments):
            return -1
        numbers = [number(arguments[count]), datatype_bytes(arguments[count + 1])]
    else:
        return None
    made = 1
    for one in numbers:
        made = None if made is None or one is None else made * one
    return -1 if made is None else made


def count_of(name, at):
    """Which argument of an MPI function counts the elements of a buffer, that of the datatype follows; None: there are several counts, or it is for each rank."""
    letters = MPI[name][0]
    count = 2 if name in REDUCTIONS else at + 1
    each = FOR_EACH.get(name[4:]) == at or (at == 3 and name in ("MPI_Alltoall", "MPI_Ialltoall")) or "scatter" in name
    return None if each or letters[count:count + 2] != "--" else count


def own_datatype(name, arguments, at):
    """Whether an argument is no buffer of messages, or one of elements of MPI's own datatypes only."""
    if name not in MPI or MPI[name][1] not in BUFFERS or letter(MPI[name][0], at) not in "rwWb" or at + 2 >= len(MPI[name][0]):
        return True
    count = count_of(name, at)
    if count is not None and count + 1 < len(arguments):
        return datatype_bytes(arguments[count + 1]) is not None
    kinds = [one for one in arguments if one.type is not None and one.type.name == "MPI_Datatype"]
    return bool(kinds) and all(datatype_bytes(one) is not None for one in kinds)


def number(expr):
    """The value of an expression of constants, or None."""
    if expr.op == "cast":
        return number(expr.args[0])
    if expr.op == "const":
        return expr.value if isinstance(expr.value, int) else None
    if expr.op == "binary" and expr.value in ("+", "-", "*"):
        one, other = map(number, expr.args)
        if one is not None and other is not None:
            return one * other if expr.value == "*" else one + other if expr.value == "+" else one - other
    return None


def effects(name):
    """Letters for the arguments of a known function, or None."""
    if name in MPI:
        return MPI[name][0]
    if name in PURE:
        return "-*"
    return LIBC.get(name)


def in_place(name, letters):
    """The letters of a collective operation whose first argument is MPI_IN_PLACE: what it takes is where the result comes to."""
    if not letters.startswith("r") or MPI.get(name, ("", ""))[1] not in ("collective", "icollective"):
        return letters
    return letters[0] + re.sub("[wW]", "b", letters[1:], count=1)


def letter(letters, at):
    """The letter of argument number `at`."""
    plain = letters.rstrip("*")
    if at < len(plain):
        return plain[at]
    return plain[-1] if letters.endswith("*") and plain else "-"


DATATYPES = {"ompi_mpi_char": 1, "ompi_mpi_byte": 1, "ompi_mpi_short": 2, "ompi_mpi_int": 4, "ompi_mpi_unsigned": 4, "ompi_mpi_long": 8, "ompi_mpi_unsigned_long": 8, "ompi_mpi_long_long_int": 8,
             "ompi_mpi_float": 4, "ompi_mpi_double": 8, "mpi_character": 1, "mpi_byte": 1, "mpi_integer": 4, "mpi_integer8": 8, "mpi_logical": 4, "mpi_real": 4, "mpi_real8": 8,
             "mpi_double_precision": 8, "mpi_complex": 8, "mpi_double_complex": 16}


def datatype_bytes(datatype):
    """Bytes of an element of one of MPI's own datatypes, or None. MPICH's handles hold the size in their second byte."""
    while datatype.op in ("cast", "addr"):
        datatype = datatype.args[0]
    if datatype.op == "var":
        return DATATYPES.get(datatype.value.name)
    if datatype.op == "const" and isinstance(datatype.value, int):
        return datatype.value >> 8 & 0xFF if datatype.value >> 24 == 0x4C else None
    return DATATYPES.get(datatype.type.name) if datatype.op == "const" and datatype.type else None
