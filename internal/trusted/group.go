package trusted

import (
	"bufio"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// maxAccounts bounds how much of /etc/group and /etc/passwd is read, in bytes. A group
// beyond it counts as shared.
const maxAccounts = 4 << 20

// thisProcess describes the running process.
func thisProcess() process {
	uid := uint32(os.Geteuid())
	return process{uid: uid, alone: func(gid uint32) bool {
		if gid == 0 {
			return true
		}
		groups, err := os.Getgroups()
		if err != nil || !slices.Contains(append(groups, os.Getegid()), int(gid)) {
			return false
		}
		return !shared("/etc/passwd", "/etc/group", gid, uid)
	}}
}

// shared reports whether files in the formats of passwd(5) and group(5) put anybody but
// uid and root in a group. Without the files, as in small containers, the group is not
// shared. Accounts that are kept elsewhere, as in LDAP, are not seen.
func shared(passwd, group string, gid, uid uint32) bool {
	names := map[string]bool{"root": true}
	found := false
	err := eachAccount(passwd, 4, func(fields []string) {
		switch number(fields[2]) {
		case int64(uid), 0:
			names[fields[0]] = true
		default:
			found = found || number(fields[3]) == int64(gid)
		}
	})
	if err != nil || found {
		return true
	}
	err = eachAccount(group, 4, func(fields []string) {
		if number(fields[2]) != int64(gid) {
			return
		}
		for member := range strings.SplitSeq(fields[3], ",") {
			found = found || member != "" && !names[member]
		}
	})
	return err != nil || found
}

// number is a user's or group's number, or -1.
func number(field string) int64 {
	n, err := strconv.ParseUint(field, 10, 32)
	if err != nil {
		return -1
	}
	return int64(n)
}

// eachAccount calls fn with the fields of each line that has at least n.
func eachAccount(path string, n int, fn func(fields []string)) error {
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	limited := &io.LimitedReader{R: f, N: maxAccounts}
	lines := bufio.NewScanner(limited)
	for lines.Scan() {
		if fields := strings.Split(lines.Text(), ":"); len(fields) >= n {
			fn(fields)
		}
	}
	if limited.N == 0 {
		return bufio.ErrTooLong
	}
	return lines.Err()
}
