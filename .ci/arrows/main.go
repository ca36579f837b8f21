// Command arrows shows how the files of each package hang together, and holds them to limits:
//
//	go run ./.ci/arrows                            # a line for each package
//	go run ./.ci/arrows -v ./imageapi              # its files from the top down, and the arrows that run up
//	go run ./.ci/arrows -files 25 -upward 15       # fails where a package is beyond a limit
//
// An arrow leads from file A to file B of the same package if A names something that B declares: a
// function, a method, a type, a field, a variable or a constant. If no file reaches itself by
// arrows, the files can be put in an order in which each names only files below it. Where some do,
// some arrows run up in any order. The program looks for the order with fewest of them, as
// room.order says. It prints their share of all arrows, and the share of those that lie in circles:
// the first is how much has to go, the second how much cannot be read on its own. Tests and
// generated files do not count.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	maxFiles := flag.Int("files", 0, "fail if a package has more files than this; 0 is no limit")
	maxUpward := flag.Int("upward", 0, "fail if more percent of a package's arrows than this run up; 0 is no limit")
	verbose := flag.Bool("v", false, "print the files of each package from the top down, with the arrows that run up")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: go run ./.ci/arrows [-files N] [-upward PERCENT] [-v] [PACKAGE...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	rooms, err := load(".", flag.Args()...)
	if err == nil {
		err = report(os.Stdout, rooms, limits{*maxFiles, *maxUpward}, *verbose)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "arrows:", err)
		os.Exit(1)
	}
}
