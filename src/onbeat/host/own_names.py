"""The names of Onbeat itself, which no plug may have: its verbs, settings and variables."""

# The verbs by section of `--help`: the reference of each, and its line of help.
SECTIONS = {
    "Run": {
        "up": ("onbeat.cli.up:up", "Plan and run schedules."),
        "down": ("onbeat.cli.nodes:down", "Stop nodes."),
        "run": ("onbeat.cli.runs:run", "Start a run now."),
        "backfill": ("onbeat.cli.backfill:backfill", "Run past ticks that were not run."),
        "cancel": ("onbeat.cli.control:cancel", "Cancel runs."),
        "report": ("onbeat.cli.control:report", "Report the outcome of an accepted run."),
    },
    "Define": {
        "init": ("onbeat.cli.schedules:init", "Write an example file of schedules."),
        "next": ("onbeat.cli.next:next_ticks", "Preview the next ticks of a trigger."),
        "plan": ("onbeat.cli.apply:plan", "Show what applying a file would change."),
        "apply": ("onbeat.cli.apply:apply_", "Create and update the schedules of a file."),
        "export": ("onbeat.cli.apply:export", "Write schedules as a file."),
        "schema": ("onbeat.cli.apply:schema", "Print the JSON Schema of schedule files."),
        "simulate": ("onbeat.cli.simulate:simulate", "Simulate what schedules will do."),
        "delete": ("onbeat.cli.schedules:delete", "Delete schedules."),
    },
    "Look": {
        "status": ("onbeat.cli.nodes:status", "Show nodes, due ticks and unfinished runs."),
        "list": ("onbeat.cli.schedules:list_", "List schedules."),
        "show": ("onbeat.cli.schedules:show", "Show one schedule and its last runs."),
        "runs": ("onbeat.cli.runs:runs", "List runs, the latest first."),
        "logs": ("onbeat.cli.runs:logs", "Print the output of a run."),
        "why": ("onbeat.cli.why:why", "Explain why a schedule ran, or did not, at a time."),
        "nodes": ("onbeat.cli.nodes:nodes", "List nodes, with their roles and launchers."),
        "audit": ("onbeat.cli.audit:audit", "List changes, with who made them."),
    },
    "Operate": {
        "pause": ("onbeat.cli.control:pause", "Pause schedules."),
        "resume": ("onbeat.cli.control:resume", "Resume paused schedules from now on."),
        "gate": ("onbeat.cli.control:gate", "Stop all schedules, or start them again."),
        "group": ("onbeat.cli.groups:group", "List groups; set a group's concurrency limit."),
        "token": ("onbeat.cli.token:token", "Manage API tokens."),
        "notify": ("onbeat.cli.notify:notify", "List and test notification channels."),
        "doctor": ("onbeat.cli.doctor:doctor", "Diagnose the installation."),
        "move": ("onbeat.cli.move:move", "Move a database from SQLite to PostgreSQL."),
        "completion": ("onbeat.cli.completion:completion", "Print a shell completion script."),
    },
}
ALIASES = {"groups": "onbeat.cli.groups:groups"}  # former spellings, which --help does not list

# The settings, and the tables of the file of settings.
SETTINGS = frozenset({
    "database", "output", "roles", "concurrency", "lease", "stop_grace", "catchup_per_second",
    "keep", "log_level", "log_format", "pass_env", "secrets", "http_targets", "listen",
    "public_url", "hosts", "cors_origins", "trusted_proxies", "rate_limit", "tls_cert", "tls_key",
    "tls_client_ca", "jwt_key", "jwt_algorithm", "jwt_issuer", "jwt_audience", "lookahead",
    "notify",
})  # fmt: skip

CONFIG = "ONBEAT_CONFIG"  # names another file of settings
# Variables that Onbeat sets for the commands it starts, which may call `onbeat` themselves.
SET_FOR_COMMANDS = frozenset({
    "ONBEAT_ATTEMPT", "ONBEAT_FAILPOINT", "ONBEAT_INPUTS", "ONBEAT_ITERATION", "ONBEAT_KEY",
    "ONBEAT_NODE", "ONBEAT_RUN_AT", "ONBEAT_RUN_ID", "ONBEAT_SCHEDULE", "ONBEAT_STORE",
    "ONBEAT_TRIGGERED_BY",
})  # fmt: skip
