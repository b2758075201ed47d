package decisionlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// maxConfigs is how many configurations are kept beside the files; those written longest ago go first.
const maxConfigs = 64

// ourConfig matches the names of configurations: each is named by its hash.
var ourConfig = regexp.MustCompile(`^decisions-config-([0-9a-f]{8,64})\.yaml$`)

func configName(hash string) string { return prefix + "config-" + hash + ".yaml" }

// KeepConfig writes a configuration that decides into the folder, so that what it decided can be decided again: text is
// the effective configuration without its secrets, hash what rows name it by. One that is there already is kept as it is.
// It waits for the disk, and is for whoever loads configurations.
func (l *Log) KeepConfig(hash, text string) error {
	if err := keepConfig(l.options.Folder, hash, text); err != nil {
		l.stats.errors.Add(1)
		return fmt.Errorf("a configuration beside the decision log: %w", err)
	}
	return nil
}

func keepConfig(folder, hash, text string) error {
	name := configName(hash)
	if !ourConfig.MatchString(name) {
		return fmt.Errorf("the hash %q is no name for a file", hash)
	}
	path := filepath.Join(folder, name)
	if _, err := os.Stat(path); err == nil { // it is the newest again
		now := time.Now()
		return os.Chtimes(path, now, now)
	}
	f, err := os.CreateTemp(folder, ".config-")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return pruneConfigs(folder, name)
}

// pruneConfigs deletes the oldest configurations beyond maxConfigs, but not the one just written.
func pruneConfigs(folder, newest string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	type config struct {
		name string
		at   time.Time
	}
	var all []config
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.Name() != newest && ourConfig.MatchString(e.Name()) {
			all = append(all, config{e.Name(), info.ModTime()})
		}
	}
	slices.SortFunc(all, func(a, b config) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return strings.Compare(a.name, b.name)
	})
	var errs []error
	for len(all) >= maxConfigs {
		if err := os.Remove(filepath.Join(folder, all[0].name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		all = all[1:]
	}
	return errors.Join(errs...)
}

// Configs are the paths of the configurations beside the reader's files, by their hashes.
func (r *Reader) Configs() map[string]string {
	found, seen := map[string]string{}, map[string]bool{}
	for _, file := range r.files {
		folder := filepath.Dir(file)
		if file == Stdin || seen[folder] {
			continue
		}
		seen[folder] = true
		entries, err := os.ReadDir(folder)
		if err != nil {
			continue // the files themselves will tell
		}
		for _, e := range entries {
			if m := ourConfig.FindStringSubmatch(e.Name()); m != nil {
				found[m[1]] = filepath.Join(folder, e.Name())
			}
		}
	}
	return found
}
