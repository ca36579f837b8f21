// Package filecache keeps byte strings, each under a number, in a file that has no
// name: what of them is in memory is the operating system's choice, and nothing is
// left behind. It is made for values that are put and asked for in rows, such as the
// objects of a list, each in the form in which it is sent.
package filecache
