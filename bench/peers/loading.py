"""Imports of peers: from a folder given by --peers, or from what is installed; and stand-ins for what they import and
do not need here."""

import importlib
import importlib.metadata
import os
import sys
import types


class Missing(Exception):
    """The peer is not there, or cannot run here; the text says why."""


def folder_of(peers, name):
    """DIR/name, put on sys.path, if it is there; None otherwise."""
    place = os.path.join(peers, name) if peers else None
    if place and os.path.isdir(place):
        if place not in sys.path:
            sys.path.insert(0, place)
        return place
    return None


def package(name, path):
    """A package whose modules are found in the folders `path`, without running its own __init__."""
    module = types.ModuleType(name)
    module.__path__ = path if isinstance(path, list) else [path]
    sys.modules[name] = module
    return module


def stand_in(name, **attributes):
    module = types.ModuleType(name)
    for attribute, value in attributes.items():
        setattr(module, attribute, value)
    sys.modules[name] = module
    return module


def load(name):
    try:
        return importlib.import_module(name)
    except Missing:
        raise
    except Exception as error:
        raise Missing(f"cannot import {name}: {type(error).__name__}: {error}") from error


def version_of(distribution, place):
    """The version that a distribution's metadata says, in the folder or among what is installed; or a VERSION file."""
    if place:
        if os.path.isfile(os.path.join(place, "VERSION")):
            with open(os.path.join(place, "VERSION"), encoding="utf-8") as file:
                return file.read().strip()
        for found in importlib.metadata.distributions(path=[place]):
            if found.metadata["Name"].lower().replace("_", "-") == distribution:
                return found.version
        return "unknown"
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        raise Missing(f"{distribution} is neither under --peers nor installed") from None


def installed_folder(distribution, module):
    """The folder that holds an installed package's module folder."""
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        raise Missing(f"{distribution} is neither under --peers nor installed") from None
    place = str(found.locate_file(""))
    if not os.path.isdir(os.path.join(place, module)):
        raise Missing(f"{distribution} is installed without {module}")
    return place


def capability():
    import torch
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
