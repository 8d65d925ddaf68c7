/* The kernel. */
#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* Of the calls from Python; INTERFACE of build.py is the same. */
EXPORT int fleetopt_interface(void) { return 1; }
