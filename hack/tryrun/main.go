// Command tryrun does nothing. make runs it as a 32-bit program, to see whether the machine runs such programs.
package main

func main() {}
