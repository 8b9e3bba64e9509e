/* For the analysis alone: the header is the compiler's own, which isn't found by its options. */
#if __has_include_next(<openacc.h>)
#include_next <openacc.h>
#else
typedef enum { acc_device_none, acc_device_default, acc_device_host, acc_device_not_host = 4, acc_device_nvidia, acc_device_radeon = 8, acc_device_current = -1 } acc_device_t;
void acc_init(acc_device_t);
void acc_shutdown(acc_device_t);
int acc_get_num_devices(acc_device_t);
void acc_set_device_type(acc_device_t);
acc_device_t acc_get_device_type(void);
void acc_set_device_num(int, acc_device_t);
int acc_get_device_num(acc_device_t);
void acc_wait(int);
void acc_wait_all(void);
#endif
