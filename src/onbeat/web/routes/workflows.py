"""Schedules of workflows, at the routes and in the shapes that their system has."""

from litestar.types import ControllerRouterHandler

ROUTES: list[ControllerRouterHandler] = []
