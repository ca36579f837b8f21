//go:build unix

package trusted

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// onlyDirectory has opening fail for anything but a directory.
const onlyDirectory = syscall.O_DIRECTORY

func check(f *os.File, secret bool) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	var s syscall.Statfs_t
	if err := syscall.Fstatfs(int(f.Fd()), &s); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	return judge(f.Name(), fi, &s, secret)
}

func checkPath(path string, secret bool) error {
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return os.NewSyscallError("statfs", err)
	}
	return judge(path, fi, &s, secret)
}

func judge(path string, fi fs.FileInfo, s *syscall.Statfs_t, secret bool) error {
	stat, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: this system does not show the owner of a file", path)
	}
	f := facts{path: path, mode: fi.Mode(), uid: stat.Uid, gid: stat.Gid, readOnly: readOnly(s)}
	return f.judge(thisProcess(), secret)
}
