// Package filecache stores byte strings under numbers in a file that has no name. The operating
// system chooses which of them are in memory, and no file is left behind. The package is meant for
// values that are written and read in order, such as the encoded objects of a list.
package filecache
