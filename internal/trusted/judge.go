package trusted

import (
	"fmt"
	"io/fs"
	"os/user"
	"strconv"
	"strings"
)

// Error says why a file is refused, and how to mend it.
type Error struct {
	// Path is the file's path, as it was given.
	Path string
	// Problem says what another user can do, such as "every user can write it".
	Problem string
	// Facts are the file's mode, owner, group and path, as ls -l shows them.
	Facts string
	// Fix is the remedy, with the command to run.
	Fix string
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("%s is refused, as %s (%s): %s", e.Path, e.Problem, e.Facts, e.Fix)
}

// facts describe a file.
type facts struct {
	path     string
	mode     fs.FileMode
	uid, gid uint32
	readOnly bool // its file system cannot be written
}

// process is the process that judges.
type process struct {
	uid uint32
	// alone reports whether a group has nobody but this process's user and root.
	alone func(gid uint32) bool
}

const (
	groupWrite, groupAny = 0o020, 0o070
	otherWrite, otherAny = 0o002, 0o007
)

// judge returns an *Error unless the file can be trusted, or, if it is secret, kept
// from others.
func (f facts) judge(p process, secret bool) error {
	if f.mode&fs.ModeDevice != 0 && f.uid == 0 {
		return nil // /dev/null, which every user may write without a trace
	}
	if f.uid != p.uid && f.uid != 0 {
		return f.refuse(fmt.Sprintf("it belongs to another user, %s", userName(f.uid)),
			fmt.Sprintf("if you trust its origin, run %schown %s %s", p.sudo(), userName(p.uid), quoted(f.path)))
	}
	perm := f.mode.Perm()
	shared := !p.alone(f.gid)
	chmod := func(problem, change string) error {
		fix := "check its content, then run "
		if secret {
			fix = "replace the secret if others may have read it, then run "
		}
		sudo := ""
		if f.uid != p.uid {
			sudo = p.sudo()
		}
		return f.refuse(problem, fix+sudo+"chmod "+change+" "+quoted(f.path))
	}
	writable := !f.readOnly
	remove := "go-w"
	if secret {
		remove = "go-rwx"
	}
	switch {
	case writable && perm&otherWrite != 0:
		return chmod("every user can write it", remove)
	case writable && perm&groupWrite != 0 && shared:
		return chmod(fmt.Sprintf("the group %s can write it", groupName(f.gid)), remove)
	case secret && perm&otherAny != 0:
		return chmod("it is a secret, and every user can read it", remove)
	case secret && perm&groupAny != 0 && shared:
		return chmod(fmt.Sprintf("it is a secret, and the group %s can read it", groupName(f.gid)), remove)
	}
	return nil
}

func (f facts) refuse(problem, fix string) error {
	return &Error{
		Path:    f.path,
		Problem: problem,
		Facts:   fmt.Sprintf("%s %s %s %s", f.mode, userName(f.uid), groupName(f.gid), f.path),
		Fix:     fix,
	}
}

// sudo begins a command that root must run.
func (p process) sudo() string {
	if p.uid == 0 {
		return ""
	}
	return "sudo "
}

// userName is a user's name or, if it has none, its number.
func userName(uid uint32) string {
	number := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(number); err == nil {
		return u.Username
	}
	return number
}

// groupName is a group's name or, if it has none, its number.
func groupName(gid uint32) string {
	number := strconv.FormatUint(uint64(gid), 10)
	if g, err := user.LookupGroupId(number); err == nil {
		return g.Name
	}
	return number
}

// quoted is a path as a shell reads it.
func quoted(path string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+=:,@", r)
	}
	if path != "" && path[0] != '-' && strings.IndexFunc(path, func(r rune) bool { return !plain(r) }) < 0 {
		return path
	}
	if strings.HasPrefix(path, "-") {
		path = "./" + path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
