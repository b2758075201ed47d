"""Lets the CUDA build of torch load where no CUDA is installed.

    python cuda_stubs.py SITE_PACKAGES

Only the CPU half of the build is to be used, but its libraries name CUDA's as needed, so the loader refuses them. For each
CUDA library that is named and not there, a small one of that name is put beside them. It defines every symbol that torch's
libraries import from CUDA, and each does nothing but answer "no CUDA device": torch.cuda.is_available() is False.
"""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile

CUDA_LIBRARY = re.compile(r"lib(cu|nccl|nvrtc|nvshmem)\w*\.so")
CUDA_SYMBOL = re.compile(r"(__)?(cu[A-Za-z]|nccl|nvrtc|nvshmem)")
# Functions that answer with a C string; the others answer with a number, which callers compare with 0.
TEXT = re.compile(r"Get\w*(Error|Status)(String|Name)$|GetLastError$")
TEXT_OF_LIBRARY = re.compile(r"nccl|cu[a-z]+Get\w*(String|Name)$")

SOURCE = """
#define NO_DEVICE 100 /* cudaErrorNoDevice; not the success of any of the libraries */
int sluice_number(void) { return NO_DEVICE; }
const char *sluice_text(void) { return "no CUDA here"; }
"""


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def needed(library):
    """The names of the libraries that one asks the loader for."""
    return re.findall(r"\(NEEDED\).*\[(.+?)\]", run("readelf", "-dW", library))


def version_owners(library):
    """Which library each symbol version comes from."""
    owners, owner = {}, None
    for line in run("readelf", "-VW", library).splitlines():
        if found := re.search(r"File: (\S+)", line):
            owner = found[1]
        elif (found := re.search(r"Name: (\S+)\s+Flags:", line)) and owner:
            owners[found[1]] = owner
    return owners


def imports(library):
    """The symbols that a library takes from others, as (name, version or None)."""
    for line in run("nm", "-D", "--undefined-only", library).splitlines():
        name, _, version = line.split()[-1].partition("@")
        yield name, version.lstrip("@") or None


def body(name):
    return "text" if TEXT.search(name) and TEXT_OF_LIBRARY.match(name) else "number"


def build(target, versioned, plain):
    """Links a library that defines the versioned symbols {name: version} and the plain ones."""
    names = sorted(set(versioned) | plain)
    source = SOURCE + "".join(f'void {n}(void) __attribute__((alias("sluice_{body(n)}")));\n' for n in names)
    groups = collections.defaultdict(list)
    for name, version in sorted(versioned.items()):
        groups[version].append(name)
    versions = "".join(f"{version} {{ global: {'; '.join(of)}; }};\n" for version, of in groups.items())
    with tempfile.TemporaryDirectory() as folder:
        code, script, out = (pathlib.Path(folder, n) for n in ("stub.c", "stub.map", "stub.so"))
        code.write_text(source)
        script.write_text(versions)
        flags = [f"-Wl,--version-script={script}"] if versions else []
        run("gcc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{target.name}", *flags, "-o", out, code)
        target.write_bytes(out.read_bytes())
    target.chmod(0o755)


def main(site_packages):
    folder = pathlib.Path(site_packages, "torch", "lib")
    libraries = sorted([*folder.glob("libtorch*.so"), *folder.glob("libc10*.so")])
    if not libraries:
        sys.exit(f"cuda_stubs: {folder} has no library of torch")
    missing = {n for library in libraries for n in needed(library) if CUDA_LIBRARY.match(n) and not (folder / n).exists()}
    versioned, plain = {name: {} for name in missing}, set()
    for library in libraries:
        owners = version_owners(library)
        for name, version in imports(library):
            if version is None:
                if CUDA_SYMBOL.match(name):
                    plain.add(name)
            elif (owner := owners.get(version)) in missing:
                versioned[owner][name] = version
    for name in sorted(missing):
        # Nothing says which library an unversioned symbol is from. The loader takes the first it finds, so each has all.
        build(folder / name, versioned[name], plain - set(versioned[name]))
    print(f"cuda_stubs: {len(missing)} libraries made", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
