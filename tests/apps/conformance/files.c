/* MPI-IO in a file of the working directory: explicit offsets, individual and shared pointers, views of derived types,
 * collective, nonblocking, split collective and ordered access, sizes, syncing. */
#include "check.h"

enum { WORDS = 20000 };

static int out[WORDS], in[WORDS];

static void load(int salt) {
    for (int i = 0; i < WORDS; i++) {
        out[i] = rank * 1000000 + salt * 100000 + i;
        in[i] = -1;
    }
}

static void same(int from, int salt, int count, const char *what) {
    for (int i = 0; i < count; i++)
        require(in[i] == from * 1000000 + salt * 100000 + i, "%s: word %d of rank %d is %d", what, i, from, in[i]);
}

int main(int count, char **arguments) {
    begin(count, arguments, MPI_THREAD_SINGLE);
    char name[64] = "conformance.file";
    for (int round = 0; again(round); round++) {
        MPI_File file;
        MPI_Status status;
        MPI_Request request;
        MPI_Offset bytes, block = (MPI_Offset)WORDS * 4;
        int right = (rank + 1) % size, done, code;
        /* Once: ROMIO hands one rank's error code to the others, and MPICH cannot read it there when their tables of errors differ. */
        if (round == 0) {
            code = MPI_File_open(MPI_COMM_WORLD, "no/such/directory/file", MPI_MODE_RDONLY, MPI_INFO_NULL, &file);
            require(error_class(code) == MPI_ERR_NO_SUCH_FILE, "opening what is not there: class %d", error_class(code));
        }
        code = MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL, &file);
        require(code == MPI_SUCCESS, "a file cannot be created: class %d", error_class(code));
        MPI_File_set_errhandler(file, MPI_ERRORS_ARE_FATAL);
        MPI_File_set_size(file, 0);

        load(1);
        MPI_File_write_at_all(file, rank * block, out, WORDS, MPI_INT, &status);
        MPI_Get_count(&status, MPI_INT, &done);
        require(done == WORDS, "%d words were written", done);
        MPI_File_sync(file);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_File_read_at(file, right * block, in, WORDS, MPI_INT, &status);
        same(right, 1, WORDS, "MPI_File_read_at");
        MPI_File_get_size(file, &bytes);
        require(bytes == size * block, "the file has %lld bytes", (long long)bytes);
        MPI_Barrier(MPI_COMM_WORLD);

        /* Words of all ranks in turn, by a view. */
        MPI_Datatype turn;
        MPI_Type_vector(WORDS, 1, size, MPI_INT, &turn);
        MPI_Type_commit(&turn);
        load(2);
        MPI_File_set_view(file, rank * 4, MPI_INT, turn, "native", MPI_INFO_NULL);
        MPI_File_write_all(file, out, WORDS, MPI_INT, &status);
        MPI_File_sync(file);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_File_set_view(file, right * 4, MPI_INT, turn, "native", MPI_INFO_NULL);
        MPI_File_read_all(file, in, WORDS, MPI_INT, &status);
        same(right, 2, WORDS, "a view of every n-th word");
        MPI_File_seek(file, WORDS / 2, MPI_SEEK_SET);
        MPI_File_iread(file, in + WORDS / 2, WORDS / 2, MPI_INT, &request);
        MPI_Wait(&request, &status);
        same(right, 2, WORDS, "MPI_File_iread");
        MPI_Type_free(&turn);
        MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL);
        MPI_File_read_at(file, (MPI_Offset)size * WORDS - 3, in, 10, MPI_INT, &status);
        MPI_Get_count(&status, MPI_INT, &done);
        require(done == 3, "%d words before the file's end instead of 3", done);
        MPI_Barrier(MPI_COMM_WORLD);

        load(3);
        MPI_File_iwrite_at_all(file, (MPI_Offset)rank * WORDS, out, WORDS, MPI_INT, &request);
        MPI_Wait(&request, &status);
        MPI_File_sync(file);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_File_read_at_all_begin(file, (MPI_Offset)right * WORDS, in, WORDS, MPI_INT);
        MPI_File_read_at_all_end(file, in, &status);
        same(right, 3, WORDS, "a split collective read");

        load(4);
        MPI_File_seek_shared(file, 0, MPI_SEEK_SET);
        MPI_File_write_ordered(file, out, WORDS, MPI_INT, &status);
        MPI_File_sync(file);
        MPI_File_seek_shared(file, 0, MPI_SEEK_SET);
        MPI_File_read_ordered(file, in, WORDS, MPI_INT, &status);
        same(rank, 4, WORDS, "ordered access");
        MPI_Barrier(MPI_COMM_WORLD);

        /* Marks written by the shared pointer: all there, none twice. */
        MPI_File_seek_shared(file, 0, MPI_SEEK_SET);
        for (int i = 0; i < 20; i++) {
            int mark = rank * 20 + i;
            MPI_File_write_shared(file, &mark, 1, MPI_INT, &status);
        }
        MPI_File_sync(file);
        MPI_Barrier(MPI_COMM_WORLD);
        char *seen = calloc((size_t)size * 20, 1);
        MPI_File_read_at(file, 0, in, size * 20, MPI_INT, &status);
        for (int i = 0; i < size * 20; i++) {
            require(in[i] >= 0 && in[i] < size * 20 && !seen[in[i]], "mark %d by the shared pointer", in[i]);
            seen[in[i]] = 1;
        }
        free(seen);
        MPI_File_close(&file);
        MPI_Barrier(MPI_COMM_WORLD);
        require(access(name, F_OK) != 0, "MPI_MODE_DELETE_ON_CLOSE left the file");
    }
    return finish();
}
