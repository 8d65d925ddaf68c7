/* Prints which interface a library of the kernel speaks: interface LIBRARY. Made by musl-gcc, musl's own loader opens it. */
#include <dlfcn.h>
#include <stdio.h>

int main(int n, char **words) {
  void *library = n == 2 ? dlopen(words[1], RTLD_NOW) : NULL;
  int (*interface)(void) = library ? (int (*)(void))dlsym(library, "fleetopt_interface") : NULL;
  if (!interface) return fprintf(stderr, "%s\n", n == 2 ? dlerror() : "interface LIBRARY"), 1;
  return printf("%d\n", interface()) < 0;
}
