/*
 * Ranks write one file through MPI-IO in strided pieces, so that neighbours share blocks: first collectively, then each on its own. Then all of
 * them compare all of it. Prints "same" on rank 0.
 *
 *     mpi_strided FILE
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { PIECE = 1000, PIECES = 300 };

static unsigned char byte_of(int rank, int round, int at)
{
    return (unsigned char)(rank * 31 + round * 7 + at * 13 + at / 251 + 1);
}

static void must(int code, const char *what)
{
    if (code == MPI_SUCCESS)
        return;
    char text[MPI_MAX_ERROR_STRING];
    int length;
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "%s: %s\n", what, text);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_File file;
    must(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file), "open");
    MPI_Datatype pieces;
    MPI_Type_vector(PIECES, PIECE, PIECE * ranks, MPI_BYTE, &pieces);
    MPI_Type_commit(&pieces);
    MPI_Offset half = (MPI_Offset)PIECES * PIECE * ranks;
    unsigned char *mine = malloc(PIECES * PIECE), *all = malloc(2 * half);
    for (int round = 0; round < 2; round++) {
        for (int at = 0; at < PIECES * PIECE; at++)
            mine[at] = byte_of(rank, round, at);
        must(MPI_File_set_view(file, round * half + rank * PIECE, MPI_BYTE, pieces, "native", MPI_INFO_NULL), "view");
        if (round == 0)
            must(MPI_File_write_all(file, mine, PIECES * PIECE, MPI_BYTE, MPI_STATUS_IGNORE), "a collective write");
        else
            must(MPI_File_write(file, mine, PIECES * PIECE, MPI_BYTE, MPI_STATUS_IGNORE), "an independent write");
    }
    must(MPI_File_sync(file), "sync");
    MPI_Barrier(MPI_COMM_WORLD);
    must(MPI_File_sync(file), "sync");
    must(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), "view");
    MPI_Status status;
    must(MPI_File_read_at(file, 0, all, (int)(2 * half), MPI_BYTE, &status), "read");
    int count, wrong = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    for (MPI_Offset at = 0; at < 2 * half; at++) {
        int round = at >= half, within = (int)(at - round * half), piece = within / PIECE;
        wrong += all[at] != byte_of(piece % ranks, round, piece / ranks * PIECE + within % PIECE);
    }
    wrong += count != 2 * half;
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    must(MPI_File_close(&file), "close");
    if (rank == 0)
        printf(wrong ? "%d bytes differ\n" : "same\n", wrong);
    MPI_Type_free(&pieces);
    MPI_Finalize();
    return wrong != 0;
}
