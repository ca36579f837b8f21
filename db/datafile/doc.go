// Package datafile handles the database's file in a data directory: its name and schema, the
// ownership of the directory, checks that the file is intact and was made by this program, and how
// it is opened.
//
// The engine (package db) and the commands that read a data directory share this package. Nothing
// here keeps a database open or runs in the background.
package datafile
