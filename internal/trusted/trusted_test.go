//go:build unix

package trusted

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Who may own, write and read what, for a process of user 41000 and for root's.
func TestJudge(t *testing.T) {
	alone := func(gid uint32) bool { return gid == 0 || gid == 41000 }
	for name, tt := range map[string]struct {
		f      facts
		root   bool
		secret bool
		want   []string // parts of the error; none is trusted
	}{
		"own":                        {f: facts{mode: 0o644, uid: 41000, gid: 41000}},
		"own, private group writes":  {f: facts{mode: 0o664, uid: 41000, gid: 41000}},
		"own, shared group reads":    {f: facts{mode: 0o640, uid: 41000, gid: 40100}},
		"own, shared group writes":   {f: facts{mode: 0o664, uid: 41000, gid: 40100}, want: []string{"the group", "can write it", "chmod go-w data"}},
		"own, all write":             {f: facts{mode: 0o666, uid: 41000, gid: 41000}, want: []string{"every user can write it", "-rw-rw-rw- ", "check its content, then run chmod go-w data"}},
		"own, all write, read-only":  {f: facts{mode: 0o666, uid: 41000, gid: 41000, readOnly: true}},
		"root's":                     {f: facts{mode: 0o644}},
		"root's, all write":          {f: facts{mode: 0o646}, want: []string{"every user can write it", "sudo chmod"}},
		"root's, pod's group writes": {f: facts{mode: fs.ModeDir | 0o775, gid: 41000}},
		"another's":                  {f: facts{mode: 0o600, uid: 41001, gid: 41000}, want: []string{"another user, 41001", "sudo chown 41000 data"}},
		"another's, root asks":       {f: facts{mode: 0o600, uid: 41001}, root: true, want: []string{"another user, 41001", "run chown root data"}},
		"another's, read-only":       {f: facts{mode: 0o444, uid: 41001, readOnly: true}, want: []string{"another user"}},
		"sticky":                     {f: facts{mode: fs.ModeDir | fs.ModeSticky | 0o777}, want: []string{"every user can write it", "dtrwxrwxrwx"}},
		"secret":                     {f: facts{mode: 0o600, uid: 41000, gid: 41000}, secret: true},
		"secret, private group":      {f: facts{mode: 0o640, uid: 41000, gid: 41000}, secret: true},
		"secret of a pod":            {f: facts{mode: 0o440, gid: 41000, readOnly: true}, secret: true},
		"secret, shared group":       {f: facts{mode: 0o640, uid: 41000, gid: 40100}, secret: true, want: []string{"can read it", "chmod go-rwx data"}},
		"secret, all read":           {f: facts{mode: 0o604, uid: 41000, gid: 41000}, secret: true, want: []string{"every user can read it", "replace the secret"}},
		"secret, all read, no write": {f: facts{mode: 0o444, readOnly: true}, secret: true, want: []string{"every user can read it"}},
		"secret, all write":          {f: facts{mode: 0o602, uid: 41000, gid: 41000}, secret: true, want: []string{"every user can write it", "chmod go-rwx data"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := process{uid: 41000, alone: alone}
			if tt.root {
				p.uid = 0
			}
			tt.f.path = "data"
			err := tt.f.judge(p, tt.secret)
			if len(tt.want) == 0 && err != nil {
				t.Error(err)
			}
			for _, w := range tt.want {
				if err == nil || !strings.Contains(err.Error(), w) {
					t.Errorf("%v lacks %q", err, w)
				}
			}
		})
	}
}

// What another user left is refused, and what mends it is a command that does.
func TestFilesOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT CHECKED: only root can give a file to another user. TestJudge has checked the rule.")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "it's planted")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 4242, 4242); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"file":   second(ReadFile(path, 10)),
		"secret": second(ReadSecret(path, 10)),
	} {
		var refused *Error
		if !errors.As(err, &refused) {
			t.Fatalf("%s: %v", what, err)
		}
		if want := "-rw------- 4242 4242 " + path; refused.Facts != want {
			t.Errorf("%s: %q, want %q", what, refused.Facts, want)
		}
		mend(t, refused)
	}
	if _, err := ReadSecret(path, 10); err != nil {
		t.Errorf("after the command: %v", err)
	}
	if err := os.Chown(dir, 4242, 4242); err != nil {
		t.Fatal(err)
	}
	var refused *Error
	if err := CheckDir(dir); !errors.As(err, &refused) || !strings.HasPrefix(refused.Facts, "drwx") {
		t.Errorf("directory: %v", err)
	}
}

func TestFilesThatOthersCanWriteOrRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tokens.csv")
	link := filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(path, []byte("x"), 0o600), os.Symlink(path, link)); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []fs.FileMode{0o602, 0o604, 0o666, 0o644} {
		for _, p := range []string{path, link} {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
			_, err := ReadFile(p, 10)
			if writable := mode&otherWrite != 0; writable != (err != nil) {
				t.Errorf("%o: %v", mode, err)
			}
			_, err = ReadSecret(p, 10)
			var refused *Error
			if !errors.As(err, &refused) {
				t.Fatalf("%o: %v", mode, err)
			}
			mend(t, refused)
			if _, err := ReadSecret(p, 10); err != nil {
				t.Errorf("%o, after the command: %v", mode, err)
			}
		}
	}
	if err := os.Chmod(dir, 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	var refused *Error
	if err := CheckDir(dir); !errors.As(err, &refused) {
		t.Fatalf("directory: %v", err)
	}
	mend(t, refused)
	if err := CheckDir(dir); err != nil {
		t.Errorf("after the command: %v", err)
	}
}

// mend runs the command that an error names.
func mend(t *testing.T, refused *Error) {
	t.Helper()
	_, command, ok := strings.Cut(refused.Fix, "run ")
	if !ok {
		t.Fatalf("%q names no command", refused.Fix)
	}
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

func second[T any](_ T, err error) error { return err }

// What is not a file is not waited for, and not read without end.
func TestNotAFile(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, dir, "/dev/null", filepath.Join(dir, "absent")} {
		if _, err := ReadFile(path, 10); err == nil {
			t.Errorf("%s was read", path)
		}
	}
	if err := CheckPath("/dev/null"); err != nil {
		t.Errorf("/dev/null as an empty file: %v", err)
	}
	if _, err := ReadFile(filepath.Join(dir, "absent"), 10); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	long := filepath.Join(dir, "long")
	if err := os.WriteFile(long, []byte("12345678901"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile(long, 10); err == nil || !strings.Contains(err.Error(), "larger than 10 bytes") {
		t.Errorf("long: %v", err)
	}
	if err := CheckDir(long); err == nil {
		t.Error("a file was taken for a directory")
	}
}

func TestSharedGroups(t *testing.T) {
	dir := t.TempDir()
	passwd, group := filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	err := errors.Join(
		os.WriteFile(passwd, []byte("root:x:0:0::/:/bin/sh\nalice:x:1000:1000::/:/bin/sh\nbob:x:1001:100::/:/bin/sh\nbroken\n"), 0o600),
		os.WriteFile(group, []byte("alice:x:1000:\nusers:x:100:\nharbour:x:50:alice,bob\nalone:x:51:alice\nwith-root:x:52:root,alice\n"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	for gid, want := range map[uint32]bool{1000: false, 100: true, 50: true, 51: false, 52: false, 2000: false} {
		if got := shared(passwd, group, gid, 1000); got != want {
			t.Errorf("group %d: shared is %v", gid, got)
		}
	}
	if shared(passwd+".absent", group+".absent", 50, 1000) {
		t.Error("there are no accounts, yet a group is shared")
	}
	if !shared(dir, group, 51, 1000) {
		t.Error("the accounts cannot be read, yet a group is not shared")
	}
}
