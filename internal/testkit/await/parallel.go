package await

import "flag"

// Parallel sets how many parallel tests of a package run at once, whatever the number of cores, for packages whose
// tests mostly wait: for back-offs, timeouts, other processes. A TestMain calls it before m.Run. The flag -parallel
// takes precedence.
func Parallel(n string) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return
	}
	if err := flag.Set("test.parallel", n); err != nil {
		panic(err) // the flag has another name in this version of Go
	}
}
