// Package datafile is the database's file in a data directory: its name and its
// schema, who owns the directory, whether the file is ours and whole, and how it is opened.
//
// The engine (package db) and the commands that read a data directory beside it share what is here.
// Nothing here keeps a database open or runs in the background.
package datafile
