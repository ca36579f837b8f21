// Package filecache keeps byte strings, each under a number, in a file that has no
// name. The operating system chooses which of them are in memory, and nothing is left
// behind. The package is made for values that are put and asked for in rows, such as
// the objects of a list, each in the form in which it is sent.
package filecache
