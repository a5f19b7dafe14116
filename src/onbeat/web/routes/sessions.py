"""Schedules of prompts to chat sessions, at the routes and in the shapes that their system has."""

from litestar.types import ControllerRouterHandler

ROUTES: list[ControllerRouterHandler] = []
